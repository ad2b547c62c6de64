// <batch-size-optimizer model="llama-3.1-8b" gpu="rtx-4090-24gb" view="memory" theme="auto"></batch-size-optimizer>
//
// Puts the calculator into a page: an iframe that loads when it is seen, is as high as its content, and starts Python only
// when it is touched. `view` is memory, plan, tradeoff or all; `theme` is auto, light or dark; `scenario` holds what else
// stands behind the # of the calculator's address, such as "optimizer=sgd&precision=fp32".
(() => {
  const NAME = "batch-size-optimizer";
  if (customElements.get(NAME)) return;
  const script = document.currentScript ?? document.querySelector('script[src*="static/embed.js"]');
  const page = new URL("../embed.html", script.src);
  const ATTRIBUTES = ["model", "gpu", "view", "theme", "scenario"];
  const FIRST_HEIGHT = { memory: 1500, plan: 900, tradeoff: 900, all: 2400 };

  class BatchSizeOptimizer extends HTMLElement {
    static observedAttributes = ATTRIBUTES;
    #frame = null;

    #address() {
      const scenario = new URLSearchParams(this.getAttribute("scenario") ?? "");
      for (const key of ["model", "gpu", "view", "theme"]) {
        const value = this.getAttribute(key);
        if (value) scenario.set(key, value);
      }
      return `${page}#${scenario}`;
    }

    #heard = ({ source, data }) => {
      if (source !== this.#frame.contentWindow || data?.type !== `${NAME}:height`) return;
      if (Number.isFinite(data.height) && data.height > 0) this.#frame.style.height = `${data.height}px`;
    };

    connectedCallback() {
      if (!this.#frame) {
        const frame = this.#frame = document.createElement("iframe");
        frame.loading = "lazy";
        frame.title = "Batch Size Optimizer";
        frame.allow = "clipboard-write";
        const height = FIRST_HEIGHT[this.getAttribute("view")] ?? FIRST_HEIGHT.all;
        frame.style.cssText = `display: block; width: 100%; height: ${height}px; border: 0`;
        frame.src = this.#address();
        const shadow = this.attachShadow({ mode: "open" });
        shadow.innerHTML = "<style>:host { display: block; }</style>";
        shadow.append(frame);
      }
      addEventListener("message", this.#heard);
    }

    disconnectedCallback() {
      removeEventListener("message", this.#heard);
    }

    // Only what stands behind the # changes, so nothing is loaded again.
    attributeChangedCallback() {
      if (this.#frame) this.#frame.src = this.#address();
    }
  }

  customElements.define(NAME, BatchSizeOptimizer);
})();
