// Loaded before the first paint, so that a chosen theme does not flash. No module: those wait.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try { return localStorage.getItem("midspan-theme"); } catch { return null; }
  };
  const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");

  const chosen = remembered();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.setAttribute("aria-label", `Switch to ${current() === "dark" ? "light" : "dark"}`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      try { localStorage.setItem("midspan-theme", root.dataset.theme); } catch { /* private mode */ }
      label();
    });
    system.addEventListener("change", label);
    label();
  });
})();
