import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Row } from '../../dist/store/sqljs/database.js'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { fill, launch, workFolder } from './service.ts'

const READERS = 1000
const IDLE = 10_000
const PLANTS = 8
const OWNERS = 10
/** Readers come in steps, so that the listener's backlog takes them all. */
const STEP = 250
/** Long enough for every reader's socket to be full, and for the first ones to be closed. */
const STALLED_MS = 45_000
const LARGE = 'x'.repeat(2 ** 20 - 200)

/**
 * What readers that ask for long plants and read nothing take, and 10,000 connections that ask for
 * nothing.
 */
export async function memory(): Promise<void> {
  const data = join(workFolder(), 'data')
  const rows: Row[] = []
  for (let owner = 0; owner < OWNERS; owner++) {
    for (let id = 0; id < PLANTS; id++) rows.push([`owner ${owner}`, String(id), LARGE])
  }
  await fill(data, rows)
  const service = await launch(data, { PLANTS_MAX_CONNECTIONS: String(IDLE + READERS) })
  await sleep(1000)
  const quietMiB = service.residentMiB()
  const open = async (count: number, first: (n: number) => string): Promise<Socket[]> => {
    const sockets: Socket[] = []
    for (let n = 0; n < count; n++) {
      const socket = connect(service.port, '127.0.0.1').on('error', () => {})
      socket.pause().write(first(n))
      sockets.push(socket)
      if (n % STEP === STEP - 1) await sleep(50)
    }
    return sockets
  }
  const idle = await open(IDLE, () => head('GET', '/plants?limit=0', { token: token('alice') }))
  await sleep(2000)
  const idleMiB = service.residentMiB()
  let peakMiB = 0
  const sampling = setInterval(() => (peakMiB = Math.max(peakMiB, service.residentMiB())), 20)
  const readers = await open(READERS, (n) =>
    head('GET', '/plants', { token: token(`owner ${n % OWNERS}`) }),
  )
  await sleep(STALLED_MS)
  clearInterval(sampling)
  const stalledMiB = service.residentMiB()
  const metrics = await (await fetch(`http://127.0.0.1:${service.adminPort}/metrics`)).text()
  const metric = (name: string): number =>
    Number(new RegExp(`^${name} (.*)$`, 'm').exec(metrics)?.[1]) / 2 ** 20
  const shown = (mib: number): string => `${mib.toFixed(0)} MiB`
  console.log(`${OWNERS * PLANTS} plants of 1 MiB: ${shown(quietMiB)}`)
  console.log(
    `and ${IDLE} idle connections: ${shown(idleMiB)}, ${(((idleMiB - quietMiB) * 1024) / IDLE).toFixed(1)} KiB each`,
  )
  console.log(
    `and ${READERS} readers that read nothing: ${shown(stalledMiB)}, at most ${shown(peakMiB)}`,
  )
  console.log(
    `of it answers under way ${shown(metric('plant_store_held_answer_bytes'))}, heap ${shown(metric('process_heap_bytes'))}`,
  )
  for (const socket of [...idle, ...readers]) socket.destroy()
  await service.stop()
}
