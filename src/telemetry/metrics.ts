export type Labels = Readonly<Record<string, string>>

/** One value, one for each set of labels, or undefined: then the metric is left out. */
export type Reading = number | undefined | readonly (readonly [labels: Labels, value: number])[]

interface Family {
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly help: string
  readonly samples: () => readonly string[]
}

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/**
 * Counts values by bucket, as Prometheus does: a value that equals a bound is in the bucket of that
 * bound. To observe a value allocates nothing.
 */
export class Histogram {
  readonly #bounds: readonly number[]
  /**
   * The counts, not cumulative: one for each bound and one for larger values. The sum is last: in
   * a field of its own, each new sum might be a new allocation.
   */
  readonly #cells: Float64Array

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds
    this.#cells = new Float64Array(bounds.length + 2)
  }

  observe(value: number): void {
    const cells = this.#cells
    const sumAt = cells.length - 1
    let at = 0
    // After the last bound comes undefined, which compares as NaN does: the search ends.
    while (value > (this.#bounds[at] ?? NaN)) at++
    cells[at] = (cells[at] ?? 0) + 1
    cells[sumAt] = (cells[sumAt] ?? 0) + value
  }

  samples(name: string, labels: Labels): string[] {
    let count = 0
    const buckets = [...this.#bounds, Infinity].map((bound, at) => {
      count += this.#cells[at] ?? 0
      return sample(`${name}_bucket`, { ...labels, le: numeral(bound) }, count)
    })
    const sum = sample(`${name}_sum`, labels, this.#cells.at(-1) ?? 0)
    return [...buckets, sum, sample(`${name}_count`, labels, count)]
  }
}

/**
 * Metrics in Prometheus' text format, version 0.0.4. Counters and gauges are read when the text is
 * made, and are not stored here.
 */
export class Metrics {
  readonly #families = new Map<string, Family>()

  counter(name: string, help: string, read: () => Reading): void {
    this.#add(name, { type: 'counter', help, samples: () => samplesOf(name, read()) })
  }

  gauge(name: string, help: string, read: () => Reading): void {
    this.#add(name, { type: 'gauge', help, samples: () => samplesOf(name, read()) })
  }

  histogram(name: string, help: string, bounds: readonly number[]): Histogram {
    return this.histograms(name, help, bounds)({})
  }

  /** Returns a function that makes the histogram of one set of labels. Call it once for each. */
  histograms(name: string, help: string, bounds: readonly number[]): (labels: Labels) => Histogram {
    const members: (readonly [Labels, Histogram])[] = []
    const samples = (): string[] =>
      members.flatMap(([labels, histogram]) => histogram.samples(name, labels))
    this.#add(name, { type: 'histogram', help, samples })
    return (labels) => {
      const histogram = new Histogram(bounds)
      members.push([labels, histogram])
      return histogram
    }
  }

  /** The text of all metrics. */
  render(): string {
    const lines = [...this.#families].flatMap(([name, { type, help, samples }]) => {
      const found = samples()
      const helpText = help.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
      return found.length === 0
        ? []
        : [`# HELP ${name} ${helpText}`, `# TYPE ${name} ${type}`, ...found]
    })
    return lines.map((line) => `${line}\n`).join('')
  }

  #add(name: string, family: Family): void {
    if (this.#families.has(name)) throw new Error(`there is a metric ${name} already`)
    this.#families.set(name, family)
  }
}

function samplesOf(name: string, reading: Reading): readonly string[] {
  if (reading === undefined) return []
  if (typeof reading === 'number') return [sample(name, {}, reading)]
  return reading.map(([labels, value]) => sample(name, labels, value))
}

function sample(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escape(text)}"`)
  return `${name}${pairs.length > 0 ? `{${pairs.join(',')}}` : ''} ${numeral(value)}`
}

function escape(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
}

/** As Go's ParseFloat reads it. */
function numeral(value: number): string {
  if (Number.isFinite(value) || Number.isNaN(value)) return String(value)
  return value > 0 ? '+Inf' : '-Inf'
}
