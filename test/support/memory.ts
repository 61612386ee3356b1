import { readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

setFlagsFromString('--expose-gc')
/** Collects garbage. It is what the flag adds to every new context. */
export const collect = runInNewContext('gc') as () => void

/** MiB of memory that a process uses now, as the kernel counts it. Linux only. */
export interface Memory {
  readonly residentMiB: number
  /** The part that no file backs: heaps, the database, stacks. */
  readonly anonymousMiB: number
  /** The most that was resident at any time. */
  readonly peakMiB: number
}

export function memoryOf(pid: number | undefined): Memory {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const mib = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) / 1024
  return { residentMiB: mib('VmRSS'), anonymousMiB: mib('RssAnon'), peakMiB: mib('VmHWM') }
}
