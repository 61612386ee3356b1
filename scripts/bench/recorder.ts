import { cpuUsage } from 'node:process'
import { percentiles, type Percentiles } from '../figures.ts'

/** Latencies are from a request's arrival to the last byte of its answer. */
export interface LoadResult extends Percentiles {
  readonly requests: number
  readonly seconds: number
  /** The load generator's own time on its core: near 1 it measures itself. */
  readonly loadShare: number
  readonly samples: Samples
  /** For how long an open loop's load generator was itself held up at most. */
  readonly longestPauseMs: number
}

/**
 * Every single request, in the order of their ends. Columns of numbers, because V8 would mark a
 * million objects during the next run, on the load generator's core.
 */
export interface Samples {
  /** Milliseconds since 1970. */
  readonly endsMs: Float64Array
  readonly micros: Float64Array
  /** 1 for a POST, 0 for a GET. */
  readonly posts: Uint8Array
  /** 1 if an open loop's load generator was itself held up between the arrival and the end. */
  readonly heldUp: Uint8Array
}

/** Records the answers of one run, and when they came. */
export class Recorder {
  readonly #cpu = cpuUsage()
  readonly #startedAt = performance.now()
  readonly #micros: number[] = []
  readonly #ends: number[] = []
  readonly #posts: number[] = []
  readonly #heldUp: number[] = []
  readonly #hasSamples: boolean
  #lastPauseEndedAt = -Infinity
  #longestPauseMs = 0

  constructor({ samples }: { readonly samples: boolean }) {
    this.#hasSamples = samples
  }

  /** To be called when a request is answered. `arrivedAt` is of `performance.now()`. */
  add(request: string | Buffer, arrivedAt: number): void {
    const at = performance.now()
    this.#micros.push((at - arrivedAt) * 1000)
    if (!this.#hasSamples) return
    this.#ends.push(at)
    this.#posts.push(typeof request === 'string' && request.startsWith('POST') ? 1 : 0)
    this.#heldUp.push(arrivedAt < this.#lastPauseEndedAt ? 1 : 0)
  }

  /** To be called when the load generator goes on after it was held up. */
  heldUp(pauseMs: number): void {
    this.#lastPauseEndedAt = performance.now()
    this.#longestPauseMs = Math.max(this.#longestPauseMs, pauseMs)
  }

  result(): LoadResult {
    const wallMs = performance.now() - this.#startedAt
    const { user, system } = cpuUsage(this.#cpu)
    const epochMs = Date.now() - performance.now()
    return {
      requests: this.#micros.length,
      seconds: wallMs / 1000,
      ...percentiles(this.#micros),
      loadShare: (user + system) / 1000 / wallMs,
      longestPauseMs: this.#longestPauseMs,
      samples: {
        endsMs: Float64Array.from(this.#ends, (end) => epochMs + end),
        micros: Float64Array.from(this.#hasSamples ? this.#micros : []),
        posts: Uint8Array.from(this.#posts),
        heldUp: Uint8Array.from(this.#heldUp),
      },
    }
  }
}
