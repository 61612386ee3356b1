/* Metrics in Prometheus' text format. */

type Type = 'counter' | 'gauge' | 'histogram'
/** Names and values of our own alone: none is escaped, and none may come from a client. */
type Labels = Readonly<Record<string, string | number>>
/** A value. Those of a histogram have a suffix after its name. */
type Sample = readonly [labels: Labels, value: number, suffix?: string]

/**
 * One value (`true` is 1), one for each set of labels, or undefined: then the metric is left out.
 */
type Reading = number | boolean | undefined | readonly Sample[]

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/** Counts values by bucket. A value that equals a bound is in the bucket of that bound. */
export class Histogram {
  readonly #labels: Labels
  /** Not cumulative: a request adds to one of them. */
  readonly #buckets: { readonly bound: number; count: number }[]
  #sum = 0

  constructor(bounds: readonly number[], labels: Labels = {}) {
    this.#labels = labels
    this.#buckets = [...bounds, Infinity].map((bound) => ({ bound, count: 0 }))
  }

  observe(value: number): void {
    const bucket = this.#buckets.find(({ bound }) => value <= bound)
    if (bucket) bucket.count++
    this.#sum += value
  }

  samples(): readonly Sample[] {
    let total = 0
    const buckets = this.#buckets.map(({ bound, count }): Sample => {
      total += count
      const le = bound === Infinity ? '+Inf' : bound
      return [{ ...this.#labels, le }, total, '_bucket']
    })
    return [...buckets, [this.#labels, this.#sum, '_sum'], [this.#labels, total, '_count']]
  }
}

/** Metrics, which are read when the text is made, in version 0.0.4 of the format. */
export class Metrics {
  readonly #families: (() => string)[] = []

  add(type: Type, name: string, help: string, read: () => Reading): void {
    this.#families.push(() => {
      const lines = linesOf(name, read())
      return lines === '' ? '' : `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines}`
    })
  }

  render(): string {
    return this.#families.map((family) => family()).join('')
  }
}

function linesOf(name: string, reading: Reading = []): string {
  const samples: readonly Sample[] = typeof reading === 'object' ? reading : [[{}, Number(reading)]]
  const lines = samples.map(([labels, value, suffix = '']) => {
    const pairs = Object.entries(labels).map(([label, text]) => `${label}="${text}"`)
    return `${name}${suffix}${pairs.length > 0 ? `{${pairs.join(',')}}` : ''} ${value}\n`
  })
  return lines.join('')
}
