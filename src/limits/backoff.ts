/**
 * The delay before the next attempt, in the unit of its arguments: it doubles from `first` up to
 * `max`. `last` is the delay before the attempt that just failed; 0 if none came before.
 */
export function nextDelay(last: number, first: number, max: number): number {
  return Math.min(Math.max(first, 2 * last), max)
}
