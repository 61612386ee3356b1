import { cpuUsage } from 'node:process'
import { percentiles, type Percentiles } from '../figures.ts'

/** Latencies are from a request's arrival to the last byte of its answer. */
export interface LoadResult extends Percentiles {
  readonly requests: number
  readonly seconds: number
  /** The load generator's own time on its core: near 1 it measures itself. */
  readonly loadShare: number
  readonly samples: readonly Sample[]
}

export interface Sample {
  /** Milliseconds since 1970. */
  readonly endMs: number
  readonly micros: number
  readonly isPost: boolean
}

/** Records the answers of one run, and when they came. */
export class Recorder {
  readonly #cpu = cpuUsage()
  readonly #startedAt = performance.now()
  readonly #micros: number[] = []
  readonly #ends: number[] = []
  readonly #posts: boolean[] = []
  readonly #hasSamples: boolean

  constructor({ samples }: { readonly samples: boolean }) {
    this.#hasSamples = samples
  }

  /** To be called when a request is answered. `arrivedAt` is of `performance.now()`. */
  add(request: string | Buffer, arrivedAt: number): void {
    const at = performance.now()
    this.#micros.push((at - arrivedAt) * 1000)
    if (!this.#hasSamples) return
    this.#ends.push(at)
    this.#posts.push(typeof request === 'string' && request.startsWith('POST'))
  }

  result(): LoadResult {
    const wallMs = performance.now() - this.#startedAt
    const { user, system } = cpuUsage(this.#cpu)
    const epochMs = Date.now() - performance.now()
    const sample = (end: number, i: number): Sample => ({
      endMs: epochMs + end,
      micros: this.#micros[i] ?? NaN,
      isPost: this.#posts[i] ?? false,
    })
    return {
      requests: this.#micros.length,
      seconds: wallMs / 1000,
      ...percentiles(this.#micros),
      loadShare: (user + system) / 1000 / wallMs,
      samples: this.#ends.map(sample),
    }
  }
}
