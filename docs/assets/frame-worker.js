// Search runs in a Worker, which browsers refuse to pages that are opened as files. There an iframe takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const script = new URL(url, location.href).href.replace(/"/g, "%22");
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        '<script>window.postMessage = (data) => parent.postMessage(data, "*")<\/script>' +
        `<script src="${script}"><\/script>`;
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }));
      window.addEventListener("message", (event) => {
        if (event.source === this.frame.contentWindow) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      document.body.appendChild(this.frame);
    }

    postMessage(data) {
      this.loaded.then(() => {
        const target = this.frame.contentWindow;
        target.dispatchEvent(new target.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
