import { HttpError } from '../errors.ts'

const RETRY_SECONDS = 1

/** Says how many bytes of a hold are still needed; 0 releases it. */
export type Hold = (bytes: number) => void

/** The memory that requests of one kind may hold together: their bodies, or their answers. */
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

  /** An owner may hold as much as stays free for the others: one alone may hold half of it all. */
  hasRoom(owner: string, bytes = 0): boolean {
    return (this.#byOwner.get(owner) ?? 0) + bytes <= this.#maxBytes - this.#heldBytes - bytes
  }

  /** @throws HttpError `overloaded` when there is no room. */
  take(owner: string, bytes: number): Hold {
    if (!this.hasRoom(owner, bytes)) throw overloaded()
    return this.hold(owner, bytes)
  }

  /** Counts what is in memory already, whether there is room for it or not. */
  hold(owner: string, bytes: number): Hold {
    let held = 0
    const resize: Hold = (needed) => {
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
