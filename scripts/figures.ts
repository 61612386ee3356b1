/** The value that a share of all values does not exceed: 0.5 the median, 1 the largest. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? NaN
}

export function median(values: readonly number[]): number {
  return percentile(values, 0.5)
}
