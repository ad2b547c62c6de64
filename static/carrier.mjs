// A worker that brings the boot snapshot, so that unpacking it holds up neither the page nor Python. Handed a port, it
// begins, answers there what static/unpack.mjs gives and then the libraries' code, and ends. To the page it says how many
// bytes have come.
import { folder, Kept } from "./kept.mjs";
import { fetched, Streamed, unpack } from "./unpack.mjs";

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

// The files are compressed themselves, so that it does not take a host that does it.
async function unzipped(name) {
  const { body, headers } = await fetched(name);
  coming.total += Number(headers.get("content-length"));
  return new Streamed(body.pipeThrough(counting()).pipeThrough(new DecompressionStream("gzip")));
}

const sources = () => Promise.all(["runtime.bin", "calc.bin"].map(unzipped));

async function fromSite(described, fetching) {
  const [runtime, calc] = await fetching;
  reported = performance.now();
  const { code, ...parts } = await unpack(described, runtime, calc);
  return { parts, code: () => code };
}

async function fromKept(described, finding) {
  const kept = await Kept.open(await finding, described);
  // Closed with this worker.
  return { parts: kept.unpack(described), code: () => kept.code() };
}

async function answer(port, mayBeKept) {
  const begun = mayBeKept ? folder() : sources();
  // Awaited further down; without this a failure before then would count as handled by nobody.
  begun.catch(() => {});
  const described = await (await fetched("start.json")).json();
  port.postMessage({ description: described });
  const unpacking = mayBeKept
    ? fromKept(described, begun).catch(() => fromSite(described, sources()))
    : fromSite(described, begun);
  const { parts: unpacked, code: libraries } = await unpacking;
  port.postMessage({ unpacked }, [unpacked.memory.buffer]);
  const code = await libraries();
  port.postMessage({ code }, code.map(({ buffer }) => buffer));
}

addEventListener("message", async ({ data: { mayBeKept }, ports: [port] }) => {
  try {
    await answer(port, mayBeKept);
  } catch ({ message }) {
    port.postMessage({ failed: message });
  }
  close();
});
