import type { Socket } from 'node:net'

/** This much is freed at once, so that looking for the largest costs little for each byte. */
const FREED_SHARE = 1 / 8

/** The socket of a connection that holds requests whose token is not verified yet. */
type Stranger = Pick<Socket, 'destroy'>

/**
 * The memory that connections hold for requests before their token is verified: waiting requests
 * with their headers, bodies, and requests after the last one. At the limit the connections that
 * hold most are closed.
 */
export class StrangersAccount {
  readonly #maxBytes: number
  readonly #held = new Map<Stranger, number>()
  #heldBytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get heldBytes(): number {
    return this.#heldBytes
  }

  /** Sets how much a connection holds. It may be closed before this returns. */
  set(stranger: Stranger, bytes: number): void {
    this.#heldBytes += bytes - (this.#held.get(stranger) ?? 0)
    if (bytes === 0) this.#held.delete(stranger)
    else this.#held.set(stranger, bytes)
    if (this.#heldBytes > this.#maxBytes) this.#closeLargest()
  }

  #closeLargest(): void {
    const untilBytes = this.#maxBytes * (1 - FREED_SHARE)
    for (const [stranger] of [...this.#held].sort(([, a], [, b]) => b - a)) {
      if (this.#heldBytes <= untilBytes) return
      this.set(stranger, 0)
      stranger.destroy()
    }
  }
}
