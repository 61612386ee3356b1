/** Verifies as many tokens at once as the keys allow; the others wait, first in, first out. */
import { ClientGone } from '../errors.ts'
import { overloaded } from '../limits/budget.ts'

/**
 * Places of requests whose token waits. The slowest usual signature, ES512, takes 3 ms of a core:
 * the last request waits 1.5 s.
 */
export const MAX_WAITING = 512
/** At most this many for those that wait for keys: a slow issuer does not keep out known keys. */
export const MAX_WAITING_FOR_KEYS = MAX_WAITING / 2
/**
 * Places of a request with a chunked body. Node may hold 2.7 MiB for it, which one read of one-byte
 * chunks takes: 64 of them are 173 MiB.
 */
const CHUNKED_PLACES = 8

/** The request that brought a token. */
export interface Client {
  readonly isChunked: boolean
  /** True once the client has left. */
  readonly isOver: boolean
}

/** A promise that never rejects; undefined if there is nothing to wait for. */
type FetchKeys = () => Promise<void> | undefined

export class VerificationQueue {
  /** How many may run; another key set may change it. */
  readonly #atOnce: () => number
  readonly #waiting: (() => void)[] = []
  #running = 0
  /** Places that are taken, by those that wait for a slot or for keys; and for keys alone. */
  #places = 0
  #placesForKeys = 0

  constructor(atOnce: () => number) {
    this.#atOnce = atOnce
  }

  /**
   * Runs the work once its keys are there and a slot is free.
   * @throws HttpError overloaded if too many wait, for a slot or for keys.
   * @throws ClientGone if the client left while it waited for a slot.
   */
  async run<T>(client: Client, work: () => Promise<T>, fetchKeys?: FetchKeys): Promise<T> {
    const places = client.isChunked ? CHUNKED_PLACES : 1
    if (!this.#hasFreeSlot && this.#places + places > MAX_WAITING)
      throw overloaded('too many tokens wait')
    const fetched = fetchKeys?.()
    if (fetched !== undefined && this.#placesForKeys + places > MAX_WAITING_FOR_KEYS)
      throw overloaded('too many tokens wait for keys')
    this.#places += places
    if (fetched !== undefined) {
      this.#placesForKeys += places
      await fetched
      this.#placesForKeys -= places
    }
    // It has its places, so it is not refused now.
    if (this.#hasFreeSlot) this.#running++
    else await new Promise<void>((start) => this.#waiting.push(start))
    this.#places -= places
    try {
      if (client.isOver) throw new ClientGone()
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
