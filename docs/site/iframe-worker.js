// No browser starts a worker for a page that was opened as a file: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(source) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "Search" });
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const load = (address) =>
        new Promise((loaded, failed) => {
          const script = Object.assign(frame.contentDocument.createElement("script"), { src: address, onload: loaded, onerror: failed });
          frame.contentDocument.body.append(script);
        });
      this.inside.importScripts = (...all) => all.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(source);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
