// Python in a worker, so that typing never waits for it.

export class Python {
  #worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  #waiting = new Map();
  #number = 0;

  constructor() {
    this.#worker.onmessage = ({ data: { id, answer, failure } }) => {
      const { resolve, reject } = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (failure) reject(new Error(failure));
      else resolve(answer);
    };
  }

  /** Call a function of bridge.py. */
  call(name, ...values) {
    return new Promise((resolve, reject) => {
      this.#waiting.set(++this.#number, { resolve, reject });
      this.#worker.postMessage({ id: this.#number, name, values });
    });
  }
}

/** Return a function that does the work with its newest arguments: at once if none is running, else after that. */
export function newest(work) {
  let running = false;
  let next;
  return async (...values) => {
    next = values;
    if (running) return;
    running = true;
    try {
      while (next) {
        const now = next;
        next = undefined;
        await work(...now);
      }
    } finally {
      running = false;
    }
  };
}

/** Return a function that calls another one when it has not been called for some milliseconds. */
export function rested(milliseconds, work) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}
