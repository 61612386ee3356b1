import { ClientGone, HttpError } from '../errors.ts'

/** The slowest common signature, of ES512, takes 3 ms of a core: the last waits about 1.5 s. */
export const MAX_WAITING = 512
const RETRY_SECONDS = 1

/** The request that a token came with; Node destroys it when its client leaves. */
export interface Client {
  readonly destroyed: boolean
}

/** Waits for something that never rejects, while others have the turn. */
export type Wait = (pending: Promise<void>) => Promise<void>

interface Waiting {
  readonly client: Client
  readonly begin: () => void
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
   * Does the work once it has a turn.
   * @throws HttpError overloaded when too many wait for one.
   * @throws ClientGone when the client left while it waited.
   */
  async run<T>(client: Client, work: (wait: Wait) => Promise<T>): Promise<T> {
    let inTurn = false
    const begin = async (): Promise<void> => {
      await this.#begin(client)
      inTurn = true
    }
    const end = (): void => {
      if (inTurn) this.#endLater()
      inTurn = false
    }
    try {
      await begin()
      return await work(async (pending) => {
        end()
        await pending
        await begin()
      })
    } finally {
      end()
    }
  }

  async #begin(client: Client): Promise<void> {
    if (this.#waiting.length === 0 && this.#running < this.#keys.atOnce) this.#running++
    else if (this.#waiting.length < MAX_WAITING) {
      await new Promise<void>((begin, drop) => this.#waiting.push({ client, begin, drop }))
    } else throw new HttpError('overloaded', ['Retry-After', String(RETRY_SECONDS)])
  }

  /** Frees the turn in the next tick: many malformed tokens, each refused at once, share none. */
  #endLater(): void {
    setImmediate(() => {
      this.#running--
      while (this.#running < this.#keys.atOnce) {
        const next = this.#waiting.shift()
        if (next === undefined) return
        if (next.client.destroyed) next.drop(new ClientGone())
        else {
          this.#running++
          next.begin()
        }
      }
    })
  }
}
