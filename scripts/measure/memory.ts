import type { Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Row } from '../../dist/store/sqljs/database.js'
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
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { filledDirectory, type MeasuredService, mib, startMeasured } from './service.ts'

const IDLE = 10_000
/** Clients come in steps, so that the listener's backlog takes them all. */
const STEP = 250
/** Long enough for every reader's socket to be full, and for the first ones to be closed. */
const STALLED_MS = 45_000
const [PLANTS, OWNERS] = [80, 10]
const LARGE = 'x'.repeat(2 ** 20 - 200)
const ALICE = token('alice')
const LIST = head('GET', '/plants', { token: ALICE })

interface Attack {
  readonly what: string
  readonly connections: number
  readonly bytes: (at: number) => string
  readonly plants?: Iterable<Row>
  /** How long they wait before memory is read. */
  readonly stalledMs?: number
  /** The account that they fill; by default that of strangers. */
  readonly account?: 'answer'
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
    plants: rowsOf(12, (at) => ['alice', String(at), 'x'.repeat(60_000)]),
  },
  {
    what: 'one-byte chunks wait for keys',
    connections: 400,
    bytes: (at) => oneByteChunks(strangeToken(String(at))),
  },
  {
    what: `readers of ${PLANTS} plants of 1 MiB that read nothing`,
    connections: 1000,
    bytes: (at) => head('GET', '/plants', { token: token(`owner ${at % OWNERS}`) }),
    plants: rowsOf(PLANTS, (at) => [`owner ${at % OWNERS}`, String(at), LARGE]),
    stalledMs: STALLED_MS,
    account: 'answer',
    tcp: true,
  },
]

/** What clients can make the service hold: each way by itself, on a service of its own. */
export async function measure(): Promise<void> {
  console.log('clients | connections | before | at most | KiB each | counted')
  for (const attack of ATTACKS) await measureAttack(attack)
}

async function measureAttack(attack: Attack): Promise<void> {
  const { what, connections, bytes, plants = [], stalledMs = 0, tcp } = attack
  const path = join(temporaryDirectorySync(), 'http.sock')
  const issuer = await silentIssuer()
  const service = await startMeasured(await filledDirectory(plants), {
    PLANTS_MAX_CONNECTIONS: String(IDLE + 10),
    // A key that is not known makes it ask an issuer that does not answer.
    ...(what.endsWith('keys') ? { PLANTS_JWKS_URL: issuer.url } : {}),
    ...(tcp ? {} : { PLANTS_LISTEN: `unix:${path}` }),
  })
  await peakMiB(service.pid)
  const before = service.memory().residentMiB
  const sockets: Socket[] = []
  while (sockets.length < connections) {
    const step = Math.min(STEP, connections - sockets.length)
    sockets.push(...flood(tcp ? service.port : path, step, bytes))
    await sleep(50)
  }
  await sleep(stalledMs)
  const most = await peakMiB(service.pid)
  const eachKiB = ((most - before) * 1024) / connections
  const held = (await heldBytes(service, attack.account ?? 'stranger')) / 2 ** 20
  const figures = [connections, mib(before), mib(most), eachKiB.toFixed(1), mib(held)]
  console.log([what, ...figures].join(' | '))
  for (const socket of sockets) socket.destroy()
  issuer.close()
  await service.kill('SIGKILL')
}

async function heldBytes({ adminPort }: MeasuredService, account: string): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text()
  return Number(new RegExp(`^plant_store_held_${account}_bytes (.*)$`, 'm').exec(text)?.[1])
}
