import { ClientGone, HttpError } from '../errors.ts'

/** The slowest usual signature, ES512, takes 3 ms of a core: the last request waits 1.5 s. */
export const MAX_WAITING = 512
/** In seconds. */
const RETRY = ['Retry-After', '1']

/** The request that brought a token. Node destroys it when its client leaves. */
export interface Client {
  readonly destroyed: boolean
}

/** Waits for a promise that never rejects; meanwhile another token is verified. */
export type Wait = (pending: Promise<void>) => Promise<void>

interface Waiting {
  readonly client: Client
  readonly start: () => void
  readonly drop: (reason: ClientGone) => void
}

/** Verifies as many tokens at once as the keys allow; the others wait, first in, first out. */
export class VerificationQueue {
  readonly #keys: { readonly atOnce: number }
  readonly #waiting: Waiting[] = []
  #running = 0

  constructor(keys: { readonly atOnce: number }) {
    this.#keys = keys
  }

  /**
   * Runs the work once a slot is free.
   * @throws HttpError overloaded if too many wait for a slot.
   * @throws ClientGone if the client left while it waited.
   */
  async run<T>(client: Client, work: (wait: Wait) => Promise<T>): Promise<T> {
    await this.#takeSlot(client)
    let hasSlot = true
    try {
      return await work(async (pending) => {
        this.#freeSlot()
        hasSlot = false
        await pending
        await this.#takeSlot(client)
        hasSlot = true
      })
    } finally {
      if (hasSlot) this.#freeSlot()
    }
  }

  async #takeSlot(client: Client): Promise<void> {
    if (this.#waiting.length === 0 && this.#running < this.#keys.atOnce) this.#running++
    else if (this.#waiting.length < MAX_WAITING) {
      await new Promise<void>((start, drop) => this.#waiting.push({ client, start, drop }))
    } else throw new HttpError('overloaded', RETRY, 'too many tokens wait')
  }

  /** In the next tick, so that a flood of malformed tokens is refused over many ticks. */
  #freeSlot(): void {
    setImmediate(() => {
      this.#running--
      while (this.#running < this.#keys.atOnce) {
        const next = this.#waiting.shift()
        if (next === undefined) return
        if (next.client.destroyed) next.drop(new ClientGone())
        else {
          this.#running++
          next.start()
        }
      }
    })
  }
}
