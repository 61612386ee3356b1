import { readdirSync, readFileSync } from 'node:fs'

/** For the process itself, the store, a compaction and the keys. */
const OWN_DESCRIPTORS = 64

/** How many files are open; undefined without /proc, or without a descriptor to read it. */
export function openDescriptors(): number | undefined {
  try {
    // The directory being read is open too, and listed.
    return readdirSync('/proc/self/fd').length - 1
  } catch {
    return undefined
  }
}

/**
 * How many files may be open, Infinity without a limit; undefined if the system does not tell. Node
 * has raised the soft limit to the hard one at its start.
 */
export function maxDescriptors(): number | undefined {
  try {
    const soft = /^Max open files +(\S+)/m.exec(readFileSync('/proc/self/limits', 'latin1'))?.[1]
    if (soft === 'unlimited') return Infinity
    return soft === undefined ? undefined : Number(soft)
  } catch {
    return undefined
  }
}

/** How many connections fit in the limit, besides `others` that have a bound of their own. */
export function connectionsWithinLimit(others: number): number {
  return Math.max(1, (maxDescriptors() ?? Infinity) - others - OWN_DESCRIPTORS)
}
