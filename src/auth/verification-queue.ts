import { ClientGone, HttpError } from '../errors.ts'

/** The slowest usual signature, ES512, takes 3 ms of a core: the last request waits 1.5 s. */
export const MAX_WAITING = 512
/** So many of them may wait for keys: unknown keys and a slow issuer do not keep out the others. */
export const MAX_WAITING_FOR_KEYS = MAX_WAITING / 2
/** In seconds. */
const RETRY = ['Retry-After', '1']

/** The socket that brought a token. Node destroys it when its client leaves. */
export interface Client {
  readonly destroyed: boolean
}

/**
 * Waits for keys: a promise that never rejects. Meanwhile another token is verified.
 * @throws HttpError overloaded if too many tokens wait for keys.
 * @throws ClientGone if the client left meanwhile.
 */
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
  #waitingForKeys = 0

  constructor(keys: { readonly atOnce: number }) {
    this.#keys = keys
  }

  /**
   * Runs the work once a slot is free.
   * @throws HttpError overloaded if too many wait, for a slot or for keys.
   * @throws ClientGone if the client left while it waited.
   */
  async run<T>(client: Client, work: (wait: Wait) => Promise<T>): Promise<T> {
    if (this.#hasFreeSlot) this.#running++
    else if (this.#waiting.length + this.#waitingForKeys < MAX_WAITING) await this.#turn(client)
    else throw new HttpError('overloaded', RETRY, 'too many tokens wait')
    let hasSlot = true
    try {
      return await work(async (pending) => {
        if (this.#waitingForKeys === MAX_WAITING_FOR_KEYS)
          throw new HttpError('overloaded', RETRY, 'too many tokens wait for keys')
        this.#waitingForKeys++
        this.#freeSlot()
        hasSlot = false
        await pending
        // It has been counted all the time, so it is not refused now.
        this.#waitingForKeys--
        if (this.#hasFreeSlot) this.#running++
        else await this.#turn(client)
        hasSlot = true
      })
    } finally {
      if (hasSlot) this.#freeSlot()
    }
  }

  get #hasFreeSlot(): boolean {
    return this.#waiting.length === 0 && this.#running < this.#keys.atOnce
  }

  #turn(client: Client): Promise<void> {
    return new Promise((start, drop) => this.#waiting.push({ client, start, drop }))
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
