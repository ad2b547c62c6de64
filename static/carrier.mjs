// A worker that brings the boot snapshot, so that unpacking it holds up neither the page nor Python. Handed a port, it
// begins, answers there what static/unpack.mjs gives and then the libraries' code, and ends. To the page it says how many
// bytes have come.
import { unpack } from "./unpack.mjs";

const at = (name) => new URL(`../vendor/snapshot/${name}`, import.meta.url);

// Not at every piece: each time the page is painted anew.
const REPORT_MILLISECONDS = 80;
const coming = { done: 0, total: 0 };
// Not before the sizes of all files are known.
let reported = Infinity;
const counting = () =>
  new TransformStream({
    transform(chunk, controller) {
      coming.done += chunk.length;
      const now = performance.now();
      if (now - reported > REPORT_MILLISECONDS || (reported < now && coming.done === coming.total)) {
        reported = now;
        postMessage(coming);
      }
      controller.enqueue(chunk);
    },
  });

async function fetched(name) {
  const response = await fetch(at(name));
  if (!response.ok) throw new Error(`${name} answered ${response.status}`);
  return response;
}

// The files are compressed themselves, so that it does not take a host that does it. sw.js keeps them unpacked.
async function unzipped(name) {
  const { body, headers } = await fetched(name);
  if (headers.has("x-unpacked")) return body;
  coming.total += Number(headers.get("content-length"));
  return body.pipeThrough(counting()).pipeThrough(new DecompressionStream("gzip"));
}

async function answer(port) {
  const description = fetched("start.json").then((response) => response.json());
  const [described, runtime, calc] = await Promise.all([description, unzipped("runtime.bin"), unzipped("calc.bin")]);
  reported = performance.now();
  port.postMessage({ description: described });
  const { code: libraries, ...unpacked } = await unpack(described, runtime, calc);
  port.postMessage({ unpacked }, [unpacked.memory.buffer]);
  const code = await libraries;
  port.postMessage({ code }, code.map(({ buffer }) => buffer));
}

addEventListener("message", async ({ ports: [port] }) => {
  try {
    await answer(port);
  } catch ({ message }) {
    port.postMessage({ failed: message });
  }
  close();
});
