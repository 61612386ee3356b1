/** Names and values of our own alone: none is escaped, and none may come from a client. */
type Labels = Readonly<Record<string, string>>

/**
 * One value (`true` is 1), one for each set of labels, or undefined: then the metric is left out.
 */
type Reading = number | boolean | undefined | readonly (readonly [Labels, number])[]

type Samples = () => readonly string[]

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/**
 * Counts values by bucket, as Prometheus does: a value that equals a bound is in the bucket of that
 * bound.
 */
export class Histogram {
  readonly #bounds: readonly number[]
  /** Not cumulative. */
  readonly #counts: number[]
  #sum = 0

  constructor(bounds: readonly number[]) {
    this.#bounds = [...bounds, Infinity]
    this.#counts = this.#bounds.map(() => 0)
  }

  observe(value: number): void {
    const at = this.#bounds.findIndex((bound) => value <= bound)
    this.#counts[at] = (this.#counts[at] ?? 0) + 1
    this.#sum += value
  }

  samples(name: string, labels: Labels): string[] {
    let count = 0
    const buckets = this.#bounds.map((bound, at) => {
      count += this.#counts[at] ?? 0
      const le = bound === Infinity ? '+Inf' : String(bound)
      return sample(`${name}_bucket`, { ...labels, le }, count)
    })
    const sum = sample(`${name}_sum`, labels, this.#sum)
    return [...buckets, sum, sample(`${name}_count`, labels, count)]
  }
}

/**
 * Metrics in Prometheus' text format, version 0.0.4. Counters and gauges are read when the text is
 * made, and are not stored here.
 */
export class Metrics {
  readonly #families: Samples[] = []

  counter(name: string, help: string, read: () => Reading): void {
    this.#add(name, 'counter', help, () => samplesOf(name, read()))
  }

  gauge(name: string, help: string, read: () => Reading): void {
    this.#add(name, 'gauge', help, () => samplesOf(name, read()))
  }

  /** Returns a function that makes the histogram of one set of labels. Call it once for each. */
  histograms(name: string, help: string, bounds: readonly number[]) {
    const all: Samples[] = []
    this.#add(name, 'histogram', help, () => all.flatMap((samples) => samples()))
    return (labels: Labels = {}): Histogram => {
      const histogram = new Histogram(bounds)
      all.push(() => histogram.samples(name, labels))
      return histogram
    }
  }

  render(): string {
    const lines = this.#families.flatMap((family) => family())
    return lines.map((line) => `${line}\n`).join('')
  }

  #add(name: string, type: string, help: string, samples: Samples): void {
    this.#families.push(() => {
      const all = samples()
      return all.length === 0 ? [] : [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...all]
    })
  }
}

function samplesOf(name: string, reading: Reading = []): readonly string[] {
  const all = typeof reading === 'object' ? reading : [[{}, Number(reading)] as const]
  return all.map(([labels, value]) => sample(name, labels, value))
}

function sample(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${text}"`)
  return `${name}${pairs.length > 0 ? `{${pairs.join(',')}}` : ''} ${value}`
}
