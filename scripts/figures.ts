/** Microseconds. */
export interface Percentiles {
  readonly p50: number
  readonly p99: number
  readonly p999: number
}

export function percentiles(micros: ArrayLike<number>): Percentiles {
  const sorted = Float64Array.from(micros).sort()
  const at = (share: number): number => Math.round(valueAt(sorted, share) || 0)
  return { p50: at(0.5), p99: at(0.99), p999: at(0.999) }
}

/** The value that a share of all values does not exceed: 0.5 the median, 1 the largest. */
export function percentile(values: readonly number[], share: number): number {
  return valueAt(Float64Array.from(values).sort(), share)
}

function valueAt(sorted: Float64Array, share: number): number {
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? NaN
}

/** Of an even number of values, the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = (sorted.length - 1) / 2
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2
}

export function tenth(value: number): number {
  return Math.round(value * 10) / 10
}
