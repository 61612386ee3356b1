/** Verifies as many tokens at once as the keys allow; the others wait, first in, first out. */
import type { Socket } from 'node:net'
import { ClientGone } from '../errors.ts'
import { overloaded } from '../ops/budget.ts'

/** The slowest usual signature, ES512, takes 3 ms of a core: the last request waits 1.5 s. */
export const MAX_WAITING = 512
/** At most this many wait for keys: a slow issuer does not keep out tokens of known keys. */
export const MAX_WAITING_FOR_KEYS = MAX_WAITING / 2

/** The socket that brought a token. Node destroys it when its client leaves. */
export type Client = Pick<Socket, 'destroyed'>

/** A promise that never rejects; undefined if there is nothing to wait for. */
type FetchKeys = () => Promise<void> | undefined

export class VerificationQueue {
  /** How many may run; another key set may change it. */
  readonly #atOnce: () => number
  readonly #waiting: (() => void)[] = []
  #running = 0
  #waitingForKeys = 0

  constructor(atOnce: () => number) {
    this.#atOnce = atOnce
  }

  /**
   * Runs the work once its keys are there and a slot is free.
   * @throws HttpError overloaded if too many wait, for a slot or for keys.
   * @throws ClientGone if the client left while it waited for a slot.
   */
  async run<T>(client: Client, work: () => Promise<T>, fetchKeys?: FetchKeys): Promise<T> {
    if (!this.#hasFreeSlot && this.#waiting.length + this.#waitingForKeys >= MAX_WAITING)
      throw overloaded('too many tokens wait')
    const fetched = fetchKeys?.()
    if (fetched !== undefined) {
      if (this.#waitingForKeys === MAX_WAITING_FOR_KEYS)
        throw overloaded('too many tokens wait for keys')
      this.#waitingForKeys++
      await fetched
      // From here on it waits for a slot. It was counted all the time, so it is not refused now.
      this.#waitingForKeys--
    }
    if (this.#hasFreeSlot) this.#running++
    else await new Promise<void>((start) => this.#waiting.push(start))
    try {
      if (client.destroyed) throw new ClientGone()
      return await work()
    } finally {
      // In the next tick, so that a flood of malformed tokens is refused over many ticks.
      setImmediate(() => this.#freeSlot())
    }
  }

  get #hasFreeSlot(): boolean {
    return this.#waiting.length === 0 && this.#running < this.#atOnce()
  }

  #freeSlot(): void {
    this.#running--
    while (this.#running < this.#atOnce() && this.#waiting.length > 0) {
      this.#running++
      this.#waiting.shift()?.()
    }
  }
}
