import { spawnSync } from 'node:child_process'
import { readFileSync, statfsSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'

/** The kernel counts in hundredths of a second, whatever its own tick. */
const TICKS = 100
const TMPFS_MAGIC = 0x01021994
const SERVER_CORE = '0'
const LOAD_CORE = '1'

/** Whether servers have one core, and the load and this process the other. */
const pinned =
  cpus().length > 1 &&
  spawnSync('taskset', ['-apc', LOAD_CORE, String(process.pid)], { stdio: 'ignore' }).status === 0

/** Puts a command on the servers' core, or on both. */
export function prefix(cores = SERVER_CORE): readonly string[] {
  return pinned ? ['taskset', '-c', cores] : []
}

/** What weakens the figures on this machine. */
export function cautions(): string[] {
  const all: string[] = []
  if (!pinned)
    all.push('without taskset and two cores, server and load share cores: figures are less steady')
  if (statfsSync(tmpdir()).type === TMPFS_MAGIC)
    all.push(`${tmpdir()} is in memory, where a sync costs nothing; TMPDIR names another place`)
  return all
}

/** CPU seconds of a process, all its threads included. */
export function cpuSeconds(pid: number): number {
  // The second field, the command in parentheses, may hold spaces: these begin with the third.
  const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ').at(-1)?.split(' ') ?? []
  return (Number(fields[11]) + Number(fields[12])) / TICKS
}
