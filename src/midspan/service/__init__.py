"""The HTTP service. `create_app(settings)` makes the application, `serve(settings)` runs it."""
