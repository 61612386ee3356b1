import type { Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import {
  FILLING,
  flood,
  HEAVY,
  MANY_HEADERS,
  oneByteChunks,
  peakMiB,
  silentIssuer,
  strangeToken,
} from '../../test/support/flood.ts'
import type { Environment } from '../../test/support/launch.ts'
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { filledDirectory, type MeasuredService, mib, startMeasured } from './service.ts'

const IDLE = 10_000
/** Clients come in steps, so that the listener's backlog takes them all. */
const STEP = 250
/** Long enough for every reader's socket to be full, and for the first ones to be closed. */
const STALLED_MS = 45_000
const LARGE = 'x'.repeat(2 ** 20 - 200)
const ALICE = token('alice')
const LIST = head('GET', '/plants', { token: ALICE })

interface Attack {
  readonly what: string
  readonly connections: number
  readonly bytes: (at: number) => string
  /** Plants of alice, this many of this length each. */
  readonly plants?: readonly [count: number, chars: number]
  readonly env?: Environment
  /** On TCP; by default on a unix socket, whose buffers are small. */
  readonly tcp?: true
}

const ATTACKS: readonly Attack[] = [
  {
    what: 'idle after a small request',
    connections: IDLE,
    bytes: () => head('GET', '/plants?limit=0', { token: ALICE }),
    tcp: true,
  },
  { what: 'idle after the largest headers', connections: 1000, bytes: () => HEAVY, tcp: true },
  { what: 'headers that never end', connections: 1000, bytes: () => MANY_HEADERS, tcp: true },
  {
    what: 'requests without a token wait for an unread response',
    connections: 1000,
    bytes: () => FILLING + HEAVY.repeat(60),
  },
  {
    what: 'one-byte chunks wait for an unread list',
    connections: 400,
    bytes: () => LIST + oneByteChunks(ALICE),
    plants: [12, 60_000],
  },
  {
    what: 'one-byte chunks wait for keys',
    connections: 400,
    bytes: (at) => oneByteChunks(strangeToken(String(at))),
  },
]

/** What clients can make the service hold: each way by itself, on a service of its own. */
export async function measure(): Promise<void> {
  console.log('clients | connections | before | at most | KiB each | counted as strangers')
  for (const attack of ATTACKS) await measureAttack(attack)
  await measureStalledReaders()
}

async function measureAttack(attack: Attack): Promise<void> {
  const { what, connections, bytes, plants: [count, chars] = [0, 0], env = {}, tcp } = attack
  const path = join(temporaryDirectorySync(), 'http.sock')
  const issuer = await silentIssuer()
  const data = await filledDirectory(
    rowsOf(count, (at) => ['alice', String(at), 'x'.repeat(chars)]),
  )
  const service = await startMeasured(data, {
    PLANTS_MAX_CONNECTIONS: String(IDLE + 10),
    // A key that is not known makes it ask an issuer that does not answer.
    ...(what.endsWith('keys') ? { PLANTS_JWKS_URL: issuer.url } : {}),
    ...(tcp ? {} : { PLANTS_LISTEN: `unix:${path}` }),
    ...env,
  })
  await peakMiB(service.pid)
  const before = service.memory().residentMiB
  const sockets: Socket[] = []
  while (sockets.length < connections) {
    const step = Math.min(STEP, connections - sockets.length)
    sockets.push(...flood(tcp ? service.port : path, step, bytes))
    await sleep(50)
  }
  const most = await peakMiB(service.pid)
  const eachKiB = ((most - before) * 1024) / connections
  const held = (await metric(service, 'plant_store_held_stranger_bytes')) / 2 ** 20
  const figures = [connections, mib(before), mib(most), eachKiB.toFixed(1), mib(held)]
  console.log([what, ...figures].join(' | '))
  for (const socket of sockets) socket.destroy()
  issuer.close()
  await service.kill('SIGKILL')
}

/** Owners of long plants, who ask for their lists and read nothing. */
async function measureStalledReaders(): Promise<void> {
  const [plants, owners, readers] = [80, 10, 1000]
  const data = await filledDirectory(
    rowsOf(plants, (at) => [`owner ${at % owners}`, String(at), LARGE]),
  )
  const service = await startMeasured(data, { PLANTS_MAX_CONNECTIONS: String(readers) })
  await peakMiB(service.pid)
  const before = service.memory().residentMiB
  const sockets = flood(service.port, readers, (at) =>
    head('GET', '/plants', { token: token(`owner ${at % owners}`) }),
  )
  await sleep(STALLED_MS)
  const held = (await metric(service, 'plant_store_held_answer_bytes')) / 2 ** 20
  const most = await peakMiB(service.pid)
  const what = `readers of ${plants} plants of 1 MiB that read nothing`
  console.log(`${what} | ${readers} | ${mib(before)} | ${mib(most)} | counted ${mib(held)}`)
  for (const socket of sockets) socket.destroy()
  await service.kill('SIGKILL')
}

async function metric({ adminPort }: MeasuredService, name: string): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text()
  return Number(new RegExp(`^${name} (.*)$`, 'm').exec(text)?.[1])
}
