import { HttpError } from '../errors.ts'

const RETRY_SECONDS = 1

/** Sets how many bytes a request holds from now on; 0 releases them. */
export type Hold = (bytes: number) => void

/** Bounds the memory that all requests hold for one purpose: their bodies, or their responses. */
export class MemoryBudget {
  readonly #maxBytes: number
  #heldBytes = 0
  readonly #byOwner = new Map<string, number>()

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get heldBytes(): number {
    return this.#heldBytes
  }

  /**
   * True if the owner, with these bytes too, holds no more than is then free. So a single owner can
   * hold half of the budget.
   */
  hasRoom(owner: string, bytes = 0): boolean {
    return (this.#byOwner.get(owner) ?? 0) + bytes <= this.#maxBytes - this.#heldBytes - bytes
  }

  /** @throws HttpError `overloaded` if there is no room. */
  take(owner: string, bytes: number): Hold {
    if (!this.hasRoom(owner, bytes)) throw overloaded()
    return this.hold(owner, bytes)
  }

  /** Counts bytes that are already in memory, with or without room for them. */
  hold(owner: string, bytes: number): Hold {
    let held = 0
    const resize: Hold = (needed) => {
      if (needed === held) return
      const ofOwner = (this.#byOwner.get(owner) ?? 0) + needed - held
      this.#heldBytes += needed - held
      held = needed
      if (ofOwner === 0) this.#byOwner.delete(owner)
      else this.#byOwner.set(owner, ofOwner)
    }
    resize(bytes)
    return resize
  }
}

export function overloaded(): HttpError {
  return new HttpError('overloaded', ['Retry-After', String(RETRY_SECONDS)])
}
