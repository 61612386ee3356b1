export type Labels = Readonly<Record<string, string>>

/**
 * A value, one for each set of labels, or undefined where there is nothing to say: then the metric
 * is left out.
 */
export type Reading = number | undefined | readonly (readonly [labels: Labels, value: number])[]

interface Family {
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly help: string
  readonly samples: () => readonly string[]
}

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'

/**
 * How often values were up to each bound, as Prometheus counts them; a bound belongs to its own
 * bucket. Observing allocates nothing: the sum stands behind the counts, since a number in an
 * object's own field may be boxed.
 */
export class Histogram {
  readonly #bounds: readonly number[]
  /** Not cumulative: one for each bound, one for what is beyond the last, then the sum. */
  readonly #cells: Float64Array

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds
    this.#cells = new Float64Array(bounds.length + 2)
  }

  observe(value: number): void {
    const cells = this.#cells
    const sumAt = cells.length - 1
    let at = 0
    // An undefined bound compares as NaN does: the search ends behind the last.
    while (value > (this.#bounds[at] ?? NaN)) at++
    cells[at] = (cells[at] ?? 0) + 1
    cells[sumAt] = (cells[sumAt] ?? 0) + value
  }

  samples(name: string, labels: Labels): string[] {
    const lines: string[] = []
    let count = 0
    for (const [at, bound] of [...this.#bounds, Infinity].entries()) {
      count += this.#cells[at] ?? 0
      lines.push(sample(`${name}_bucket`, { ...labels, le: numeral(bound) }, count))
    }
    lines.push(
      sample(`${name}_sum`, labels, this.#cells.at(-1) ?? 0),
      sample(`${name}_count`, labels, count),
    )
    return lines
  }
}

/**
 * Metrics in Prometheus' text format, version 0.0.4. Counters and gauges are read when somebody
 * asks, and nothing is kept for them here: what nobody reads costs nothing.
 */
export class Metrics {
  readonly #families = new Map<string, Family>()

  counter(name: string, help: string, read: () => Reading): void {
    this.#read('counter', name, help, read)
  }

  gauge(name: string, help: string, read: () => Reading): void {
    this.#read('gauge', name, help, read)
  }

  histogram(name: string, help: string, bounds: readonly number[]): Histogram {
    return this.histograms(name, help, bounds)({})
  }

  /**
   * A histogram for each set of labels. The function makes one, and is called once for each set.
   */
  histograms(name: string, help: string, bounds: readonly number[]): (labels: Labels) => Histogram {
    const members: (readonly [Labels, Histogram])[] = []
    this.#add(name, {
      type: 'histogram',
      help,
      samples: () => members.flatMap(([labels, histogram]) => histogram.samples(name, labels)),
    })
    return (labels) => {
      const histogram = new Histogram(bounds)
      members.push([labels, histogram])
      return histogram
    }
  }

  #read(type: 'counter' | 'gauge', name: string, help: string, read: () => Reading): void {
    const samples = (): readonly string[] => {
      const reading = read()
      if (reading === undefined) return []
      return typeof reading === 'number'
        ? [sample(name, {}, reading)]
        : reading.map(([labels, value]) => sample(name, labels, value))
    }
    this.#add(name, { type, help, samples })
  }

  #add(name: string, family: Family): void {
    if (this.#families.has(name)) throw new Error(`there is a metric ${name} already`)
    this.#families.set(name, family)
  }

  /** All of them as text. */
  render(): string {
    const lines: string[] = []
    for (const [name, { type, help, samples }] of this.#families) {
      const found = samples()
      if (found.length > 0)
        lines.push(
          `# HELP ${name} ${help.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')}`,
          `# TYPE ${name} ${type}`,
          ...found,
        )
    }
    return lines.map((line) => `${line}\n`).join('')
  }
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
  return Number.isFinite(value) || Number.isNaN(value) ? String(value) : value > 0 ? '+Inf' : '-Inf'
}
