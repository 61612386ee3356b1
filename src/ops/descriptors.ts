import { readFileSync } from 'node:fs'

/**
 * What the process holds open by itself, and what the store, a compaction and the keys open now and
 * then.
 */
const OWN_DESCRIPTORS = 64

/**
 * Most files that may be open, Infinity where there is no limit; undefined where the system does
 * not tell. Node has raised the soft limit to the hard one when it started.
 */
export function maxDescriptors(): number | undefined {
  try {
    const soft = /^Max open files +(\S+)/m.exec(readFileSync('/proc/self/limits', 'latin1'))?.[1]
    return soft === undefined ? undefined : soft === 'unlimited' ? Infinity : Number(soft)
  } catch {
    return undefined
  }
}

/**
 * So many connections may be open before the store lacks descriptors, beside `others` that are
 * bounded as well.
 */
export function connectionsWithinLimit(others: number): number {
  return Math.max(1, (maxDescriptors() ?? Infinity) - others - OWN_DESCRIPTORS)
}
