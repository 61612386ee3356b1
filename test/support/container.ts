import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { post } from './http.ts'
import type { Ports } from './launch.ts'
import { type Scrape, scrape } from './metrics.ts'
import { token } from './tokens.ts'

/* A group of processes with bounded memory, as a container has it, and plants that fill it. */

const MIB = 2 ** 20
const CLIENTS = 32
const LOOK_MS = 200
const V1 = '/sys/fs/cgroup/memory'
const V2 = '/sys/fs/cgroup'

/**
 * A group, with a command that runs the rest of a command line in it. Undefined where this process
 * may not make one. Swap does not count: use it without.
 */
export function groupOf(limitMiB: number) {
  const isV1 = existsSync(`${V1}/memory.limit_in_bytes`)
  const folder = `${isV1 ? V1 : V2}/plant-store-${process.pid}`
  try {
    mkdirSync(folder)
    const limit = isV1 ? 'memory.limit_in_bytes' : 'memory.max'
    writeFileSync(`${folder}/${limit}`, String(limitMiB * MIB), { flag: 'r+' })
  } catch {
    if (existsSync(folder)) rmdirSync(folder)
    return undefined
  }
  return {
    prefix: ['sh', '-c', `echo $$ > ${folder}/cgroup.procs && exec "$0" "$@"`],
    async remove() {
      // The kernel takes a moment to see that it is empty.
      while (readFileSync(`${folder}/cgroup.procs`, 'utf8') !== '') await sleep(LOOK_MS)
      rmdirSync(folder)
    },
  }
}

/**
 * Creates plants with names of up to `maxChars` characters, until `isEnough`, or until one is
 * refused. Returns their number, and the status of that refusal.
 */
export async function fill(
  { port, adminPort }: Ports,
  firstId: number,
  maxChars: number,
  isEnough: (scrape: Scrape) => boolean = () => false,
): Promise<{ readonly created: number; readonly refusedWith: number | undefined }> {
  const agent = new Agent({ keepAlive: true })
  let [id, isOver, created] = [firstId, false, 0]
  let refusedWith: number | undefined
  const client = async (): Promise<void> => {
    while (!isOver) {
      const at = id++
      const plant = { id: at, name: `Monstera ${at} ${'x'.repeat(at % maxChars)}`, tag: 'indoor' }
      const { status } = await post(port, plant, { agent, token: token(`user-${at % 1000}`) })
      if (status === 200) created++
      else [isOver, refusedWith] = [true, status]
    }
  }
  const look = async (): Promise<void> => {
    while (!isOver) {
      await sleep(LOOK_MS)
      isOver ||= isEnough(await scrape(adminPort))
    }
  }
  await Promise.all([look(), ...Array.from({ length: CLIENTS }, client)])
  agent.destroy()
  return { created, refusedWith }
}
