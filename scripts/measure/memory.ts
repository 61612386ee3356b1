import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { filledDirectory, mib, startMeasured } from './service.ts'

const READERS = 1000
const IDLE = 10_000
const PLANTS = 80
const OWNERS = 10
/** Clients come in steps, so that the listener's backlog takes them all. */
const STEP = 250
/** Long enough for every reader's socket to be full, and for the first ones to be closed. */
const STALLED_MS = 45_000
const LARGE = 'x'.repeat(2 ** 20 - 200)

/** What idle connections take, and clients that ask for long lists and read nothing. */
export async function measure(): Promise<void> {
  const data = await filledDirectory(
    rowsOf(PLANTS, (at) => [`owner ${at % OWNERS}`, String(at), LARGE]),
  )
  const service = await startMeasured(data, { PLANTS_MAX_CONNECTIONS: String(IDLE + READERS) })
  const resident = (): number => service.memory().residentMiB
  await sleep(1000)
  const quietMiB = resident()
  const small = head('GET', '/plants?limit=0', { token: token('alice') })
  await open(service.port, IDLE, () => small)
  await sleep(2000)
  const idleMiB = resident()
  let peakMiB = 0
  const sampling = setInterval(() => (peakMiB = Math.max(peakMiB, resident())), 20)
  await open(service.port, READERS, (n) =>
    head('GET', '/plants', { token: token(`owner ${n % OWNERS}`) }),
  )
  await sleep(STALLED_MS)
  clearInterval(sampling)
  const stalledMiB = resident()
  const metrics = await (await fetch(`http://127.0.0.1:${service.adminPort}/metrics`)).text()
  const metric = (name: string): string =>
    mib(Number(new RegExp(`^${name} (.*)$`, 'm').exec(metrics)?.[1]) / 2 ** 20)
  const eachKiB = (((idleMiB - quietMiB) * 1024) / IDLE).toFixed(1)
  console.log(`${PLANTS} plants of 1 MiB: ${mib(quietMiB)}
and ${IDLE} idle connections: ${mib(idleMiB)}, ${eachKiB} KiB each
and ${READERS} readers that read nothing: ${mib(stalledMiB)}, at most ${mib(peakMiB)}
held responses ${metric('plant_store_held_answer_bytes')}, heap ${metric('process_heap_bytes')}`)
}

/** Opens connections that send one request each and read nothing. */
async function open(port: number, count: number, request: (n: number) => string): Promise<void> {
  for (let n = 0; n < count; n++) {
    const socket: Socket = connect(port, '127.0.0.1').on('error', () => {})
    socket.pause().write(request(n))
    if (n % STEP === STEP - 1) await sleep(50)
  }
}
