"""The HTTP service: `midspan serve`. `build(settings)` makes the application, `serve` runs it."""
