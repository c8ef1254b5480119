(function () {
  "use strict";
  var root = document.documentElement;
  var button = document.getElementById("theme");
  var prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  }
  function nameButton() {
    button.textContent = isDark() ? "Light" : "Dark";
  }
  button.hidden = false;
  button.addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameButton();
  });
  prefersDark.addEventListener("change", nameButton);
  nameButton();

  // Browsers refuse to save long data addresses, but not blobs.
  document.querySelectorAll("a[download]").forEach(function (link) {
    link.addEventListener("click", function () {
      if (!link.href.startsWith("data:")) return;
      var bytes = Uint8Array.from(atob(link.href.split(",")[1]), function (letter) { return letter.charCodeAt(0); });
      link.href = URL.createObjectURL(new Blob([bytes], { type: link.href.slice(5).split(";")[0] }));
    });
  });

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
