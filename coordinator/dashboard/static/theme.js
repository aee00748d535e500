// The theme: the system's, unless somebody chose one. Runs before the page is painted.
(() => {
  const order = ["auto", "light", "dark"];
  const system = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try {
      return localStorage.getItem("plait-theme") ?? "auto";
    } catch {
      return "auto";
    }
  };
  const apply = () => {
    const choice = read();
    const isDark = choice === "dark" || (choice === "auto" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    for (const button of document.querySelectorAll("[data-theme-toggle]")) {
      button.textContent = `Theme: ${choice}`;
    }
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-toggle]")) return;
    const next = order[(order.indexOf(read()) + 1) % order.length];
    try {
      localStorage.setItem("plait-theme", next);
    } catch {
      // Without storage the choice lasts until the page is left.
    }
    apply();
  });
  apply();
})();
