// A consumer of a topic in JavaScript, with nothing but fetch: for Node.js from 18 on, Deno, Bun.
// Its types are told in comments, which editors and TypeScript read as they are.
//
//   ROWMQ_API=http://localhost:8080/api/v1 ROWMQ_TOKEN=rowmq_... node consume.mjs orders billing

import { randomUUID } from "node:crypto";
import process from "node:process";

/**
 * @template T
 * @typedef {object} Message
 * @property {string} topic
 * @property {string | null} key
 * @property {number} shard
 * @property {number} offset
 * @property {string | null} id
 * @property {Record<string, string>} headers
 * @property {string | null} published_at
 * @property {T} payload
 * @property {"json" | "text" | "base64"} encoding
 */

/**
 * @template T
 * @typedef {object} Delivery
 * @property {string} receipt
 * @property {number} attempt
 * @property {Message<T>} message
 */

/** @typedef {{ type: string, title: string, status: number, detail: string }} Problem */

/**
 * @typedef {object} Options
 * @property {string} url The API, such as http://localhost:8080/api/v1.
 * @property {string} [token]
 * @property {string} topic
 * @property {string} group
 * @property {string} [consumer] Tells apart consumers with the same token.
 * @property {number} [max] How many messages to have at a time.
 * @property {number} [visibilitySeconds] How long to have them.
 * @property {number} [maxAttempts]
 */

const WAIT_SECONDS = 20;
const PAUSE_SECONDS = 1;
const CLOSE_SECONDS = 5;

/** What the API refused; `type` says why, for programs. */
export class Refused extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(`${problem.status} ${problem.title}: ${problem.detail}`);
    this.problem = problem;
  }
}

/**
 * A member of a group: polls, and settles what it was given.
 *
 * @template [T=unknown]
 */
export class Consumer {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
  }

  /**
   * Handle messages until the signal says that it is enough: done is acked, an error nacked.
   *
   * @param {(delivery: Delivery<T>) => Promise<void>} handle
   * @param {AbortSignal} signal
   */
  async run(handle, signal) {
    while (!signal.aborted) {
      for (const delivery of await this.poll(signal)) {
        try {
          await handle(delivery);
        } catch (error) {
          console.error(`${delivery.message.id}, attempt ${delivery.attempt}, failed:`, error);
          await this.settle("nack", delivery, { error: String(error) });
          continue;
        }
        await this.settle("ack", delivery);
      }
    }
    await this.close();
  }

  /**
   * The next messages. A poll whose answer was lost is sent again with the same id, so that what
   * it delivered is not waited for until its visibility has passed.
   *
   * @param {AbortSignal} [signal]
   * @returns {Promise<Delivery<T>[]>}
   */
  async poll(signal) {
    const { max = 10, consumer = "default", visibilitySeconds = 60, maxAttempts = 3 } = this.options;
    const body = {
      id: randomUUID(),
      max,
      consumer,
      timeout_seconds: WAIT_SECONDS,
      visibility_seconds: visibilitySeconds,
      max_attempts: maxAttempts,
    };
    const answer = await this.call("POST", "/poll", body, signal);
    return answer?.deliveries ?? [];
  }

  /**
   * Settle a delivery. That it is somebody else's by now is no error of ours: they settle it.
   *
   * @param {"ack" | "nack" | "reject" | "extend"} how
   * @param {Delivery<T>} delivery
   * @param {{ error?: string, delay_seconds?: number, seconds?: number }} [more]
   */
  async settle(how, delivery, more = {}) {
    try {
      await this.call("POST", `/${how}`, { receipts: [delivery.receipt], ...more });
    } catch (error) {
      const lost = error instanceof Refused && error.problem.type === "urn:rowmq:stale-lease";
      if (!lost) throw error;
    }
  }

  /**
   * Let others have the partitions, and what is not settled, at once; they would have it a minute
   * later by themselves, so nobody waits for this.
   */
  async close() {
    const { consumer = "default" } = this.options;
    const within = AbortSignal.timeout(CLOSE_SECONDS * 1000);
    await this.call("DELETE", `/consumers/${encodeURIComponent(consumer)}`, undefined, within);
  }

  /**
   * A call is repeated as long as nobody answers, or the answer is to try again later: all of
   * these can be. Undefined if the signal came first.
   *
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body]
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  async call(method, path, body, signal) {
    const { url, token, topic, group } = this.options;
    const names = [topic, group].map(encodeURIComponent);
    while (!signal?.aborted) {
      try {
        const response = await fetch(`${url}/topics/${names[0]}/groups/${names[1]}${path}`, {
          method,
          headers: {
            ...(body === undefined ? {} : { "Content-Type": "application/json" }),
            ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
          },
          body: body === undefined ? null : JSON.stringify(body),
          signal: signal ?? null,
        });
        if (response.ok) return await response.json();
        if (![429, 502, 503, 504].includes(response.status)) {
          throw new Refused(await response.json());
        }
      } catch (error) {
        if (error instanceof Refused) throw error;
        if (!signal?.aborted) console.error(`${error}; trying again`);
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_SECONDS * 1000));
    }
    return undefined;
  }
}

// --- as a program ------------------------------------------------------------------------------

const [topic = "orders", group = "billing"] = process.argv.slice(2);
const stop = new AbortController();
process.on("SIGINT", () => stop.abort());
process.on("SIGTERM", () => stop.abort());

/** @type {Consumer<{ total: number }>} */
const consumer = new Consumer({
  url: process.env["ROWMQ_API"] ?? "http://localhost:8080/api/v1",
  token: process.env["ROWMQ_TOKEN"],
  topic,
  group,
});
console.log(`${group} consumes ${topic}`);
await consumer.run(async ({ message, attempt }) => {
  if (message.payload.total < 0) throw new Error("a negative total");
  console.log(`billed ${message.id}: ${message.payload.total}, attempt ${attempt}`);
}, stop.signal);
