import type { Socket } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { setTimeout as sleep } from 'node:timers/promises'
import { errorCodeOf } from '../../dist/errors.js'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import {
  flood,
  HEAVY,
  MANY_HEADERS,
  oneByteChunks,
  peakMiB,
  silentIssuer,
  strangeToken,
} from '../../test/support/flood.ts'
import { call, post } from '../../test/support/http.ts'
import type { Program } from '../../test/support/launch.ts'
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { NAMED } from '../variables.ts'
import { filledDirectory, mib, startMeasured } from './service.ts'

/** The default of PLANTS_MAX_CONNECTIONS. */
const CONNECTIONS = 1000
/** Clients come in steps, so that the listener's backlog takes them all. */
const STEP = 250
/** Long enough for all to be accepted. */
const ACCEPT_MS = 2000
const CONNECT_TRIES = 100
/** Long enough for every reader's socket to be full. */
const STALLED_MS = 5000
/** At most this many requests of a connection wait; those after the first have so many headers. */
const [WAITING, WAITING_HEADERS] = [8, 100]
const MOST_HEADERS = 98
const [PLANTS, OWNERS] = [80, 10]
const WHOLE = '/plants?limit=2147483647'
const LARGE = 'x'.repeat(2 ** 20 - 200)
/** One read of 64 KiB has fewer of them than may wait. */
const PADDED = [`padding: ${'x'.repeat(9000)}`]
const ALICE = token('alice')
/** More than the buffers of a unix socket hold. */
const LIST = head('GET', '/plants', { token: ALICE })
const LISTED = [...rowsOf(12, (at) => ['alice', String(at), 'x'.repeat(60_000)])]

interface Attack {
  readonly what: string
  readonly bytes: (at: number) => string
  readonly plants?: Iterable<Row>
  readonly clients?: number
  /** How often they send it: until a response that they do not read finds no room. */
  readonly times?: number
  /** How many come at once. */
  readonly step?: number
  /** In place of the built command. */
  readonly program?: Program
  /** How long they pause between two times. */
  readonly pauseMs?: number
  /** Whether they read. */
  readonly reads?: boolean
  /** How long they wait before memory is read. */
  readonly stalledMs?: number
  /** On TCP; by default on a unix socket, whose buffers are small. */
  readonly tcp?: true
}

/**
 * As many requests as may wait, without a token: one with the most headers, and others that have
 * this many each.
 */
function waitingRequests(headers: number): readonly string[] {
  const count = Math.min(WAITING - 1, Math.floor(WAITING_HEADERS / headers))
  return [MOST_HEADERS, ...Array<number>(count).fill(headers)].map((each) =>
    head('GET', '/plants', { token: undefined, lines: Array<string>(each - 1).fill('a:') }),
  )
}

/** They wait for a list that is not read. */
function waiting(headers: number): Attack {
  const requests = waitingRequests(headers)
  return {
    what: `${requests.length} requests of ${headers} headers wait for an unread list`,
    bytes: () => LIST + requests.join(''),
    plants: LISTED,
  }
}

const STRANGE = waitingRequests(Math.floor(WAITING_HEADERS / (WAITING - 1)))

/** A few at a time: pages of more have no room. */
const pagesRead = () => ({
  plants: rowsOf(OWNERS * 9, (at) => [`owner ${at % OWNERS}`, String(at), LARGE]),
  clients: 220,
  step: 4,
  reads: true,
})

const ATTACKS: readonly Attack[] = [
  {
    what: 'idle after a small request',
    bytes: () => head('GET', '/plants?limit=0', { token: ALICE }),
    tcp: true,
  },
  { what: 'idle after the largest headers', bytes: () => HEAVY, tcp: true },
  { what: 'headers that never end', bytes: () => MANY_HEADERS, tcp: true },
  ...[1, 9, 31, 98].map(waiting),
  {
    what: `${WAITING} requests with the most headers wait for an unread 401`,
    bytes: () => STRANGE.join(''),
    times: 24,
  },
  {
    what: '60 strangers: 64 KiB of the shortest requests each, at one moment',
    bytes: () => 'GET / HTTP/1.1\r\n\r\n'.repeat(3640),
    clients: 60,
    tcp: true,
  },
  {
    what: 'one-byte chunks come for an unread list',
    bytes: () => oneByteChunks(ALICE, 'GET'),
    plants: LISTED,
  },
  { what: 'one-byte chunks with a known token', bytes: () => oneByteChunks(ALICE) },
  {
    what: 'one-byte chunks whose token waits for keys',
    bytes: (at) => oneByteChunks(strangeToken(String(at))),
  },
  {
    what: `readers of ${PLANTS} plants of 1 MiB that read nothing`,
    bytes: (at) => head('GET', '/plants', { token: token(`owner ${at % OWNERS}`) }),
    plants: rowsOf(PLANTS, (at) => [`owner ${at % OWNERS}`, String(at), LARGE]),
    stalledMs: STALLED_MS,
  },
  {
    what: '100 clients that do not read pages of 8 MiB',
    bytes: (at) => head('GET', WHOLE, { token: token(`owner ${at % OWNERS}`) }),
    plants: rowsOf(OWNERS * 9, (at) => [`owner ${at % OWNERS}`, String(at), LARGE]),
    clients: 100,
    stalledMs: STALLED_MS,
  },
  {
    what: '220 clients that read pages of 8 MiB, and do not send the bodies that they announce',
    bytes: (at) =>
      head('GET', WHOLE, { token: token(`owner ${at}`), lines: ['Content-Length: 10'] }),
    ...pagesRead(),
  },
  {
    what: 'responses to HEAD of a page of 1 MiB find no room',
    bytes: (at) =>
      head('HEAD', `/plants?limit=1&${at}`, { token: token('owner 1'), lines: PADDED }),
    plants: rowsOf(1, (at) => ['owner 1', String(at), LARGE]),
    times: 300,
    pauseMs: 20,
  },
  {
    what: `in another application's server: 220 clients, each after a page and three requests`,
    bytes: (at) => {
      const bearer = { token: token(`owner ${at}`) }
      return head('GET', WHOLE, bearer) + head('GET', '/plants?limit=0', bearer).repeat(3)
    },
    ...pagesRead(),
    program: {
      main: fileURLToPath(new URL('mounted.ts', import.meta.url)),
      options: ['--import', 'tsx'],
    },
    tcp: true,
  },
]

/** What clients can make the service hold: each way by itself, on a service of its own. */
export async function measure(): Promise<void> {
  console.log(`${CONNECTIONS} clients, unless named | before | at most | KiB each | create | probe`)
  for (const attack of ATTACKS) if (attack.what.includes(NAMED)) await measureAttack(attack)
}

async function measureAttack(attack: Attack): Promise<void> {
  const { what, bytes, plants = [], clients = CONNECTIONS, times = 1, tcp, reads } = attack
  const { pauseMs = ACCEPT_MS, stalledMs = ACCEPT_MS, step = STEP, program } = attack
  const path = join(temporaryDirectorySync(), 'http.sock')
  const issuer = await silentIssuer()
  const env = {
    // A key that is not known makes it ask an issuer that does not answer.
    ...(what.endsWith('keys') ? { PLANTS_JWKS_URL: issuer.url } : {}),
    ...(tcp ? {} : { PLANTS_LISTEN: `unix:${path}` }),
  }
  const service = await startMeasured(await filledDirectory(plants), env, program)
  await peakMiB(service.pid)
  const before = service.memory().residentMiB
  const sockets: Socket[] = []
  while (sockets.length < clients) {
    const some = flood(tcp ? service.port : path, Math.min(step, clients - sockets.length), bytes)
    sockets.push(...some)
    await (reads ? Promise.all(some.map(pageRead)) : sleep(ACCEPT_MS / 10))
  }
  for (let time = 1; time < times; time++) {
    await sleep(pauseMs)
    for (const [at, socket] of sockets.entries()) socket.write(bytes(at), 'latin1')
  }
  await sleep(stalledMs)
  const probe = await call(service.adminPort, { path: '/livez', token: undefined })
  // The listener of a unix socket may have no room while it accepts the others, one a tick.
  const create = await untilConnected(() =>
    post(tcp ? service.port : path, { id: 1, name: 'meanwhile' }, { token: token('bob') }),
  )
  const most = await peakMiB(service.pid)
  const eachKiB = ((most - before) * 1024) / clients
  const figures = [mib(before), mib(most), eachKiB.toFixed(1), create.status, probe.status]
  console.log([what, ...figures].join(' | '))
  for (const socket of sockets) socket.destroy()
  issuer.close()
  await service.kill('SIGKILL')
}

/** Once a client has read its page. Nothing is kept of it. */
function pageRead(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    let bytes = 0
    socket.resume().on('data', (chunk) => {
      bytes += chunk.length
      if (bytes > 7 * LARGE.length) resolve()
    })
  })
}

async function untilConnected<T>(ask: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await ask()
    } catch (error) {
      if (errorCodeOf(error) !== 'EAGAIN' || tries === CONNECT_TRIES) throw error
      await sleep(ACCEPT_MS / 10)
    }
  }
}
