import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { flood } from '../../test/support/flood.ts'
import { token } from '../../test/support/tokens.ts'
import { head, JSON_TYPE, postBytes } from '../../test/support/wire.ts'
import { percentile } from '../figures.ts'
import { NAMED, wholeNumber } from '../variables.ts'
import { probeDuring } from './prober.ts'
import { filledDirectory, mib, startMeasured } from './service.ts'

const SECONDS = wholeNumber('SECONDS', 8)
const MILLION = 1_000_000
const LARGE = 'x'.repeat(2 ** 20 - 200)
const MALLORY = token('mallory')
const LARGE_ID = 5_000_000
/** Just below what a request may have, beside its token. */
const BLANKS = ' '.repeat(15_000)
const LONG_HEADERS: Readonly<Record<string, string>> = {
  'Connection of blanks': `Connection: a${BLANKS}a`,
  'Content-Encoding': `${JSON_TYPE}\r\nContent-Encoding: ${'a'.repeat(15_000)}`,
  'Content-Type of parameters': `Content-Type: application/json${';charset=utf-8'.repeat(1000)}`,
  'Expect': `Expect: ${'a'.repeat(15_000)}`,
  'Request-Id': `Request-Id: ${'a'.repeat(15_000)}`,
  'traceparent': `traceparent: 01-${'1'.repeat(32)}-${'1'.repeat(16)}-01-${'a'.repeat(15_000)}`,
  'Origin': `Origin: ${'a'.repeat(15_000)}`,
  'Authorization': `Authorization: Bearer ${'a'.repeat(14_000)}!`,
}
const SMALL_ID = 5_000_001

/** What one owner with a valid token asks on many connections, again after each answer. */
interface Attack {
  readonly name: string
  readonly connections: number
  readonly request: (connection: number, round: number) => string
  /** Whether the answers are left unread. */
  readonly unread?: boolean
}

const ATTACKS: readonly Attack[] = [
  {
    name: '1,000 POSTs of an id that a plant of 1 MB has',
    connections: 1000,
    request: () => postBytes({ id: LARGE_ID, name: 'y'.repeat(200) }, { token: MALLORY }),
  },
  {
    name: '300 uncached lists of a plant of 1 MB',
    connections: 300,
    request: (connection, round) =>
      head('GET', `/plants?limit=1&x=${connection}-${round}`, { token: token('large') }),
  },
  {
    name: '500 unread lists of 1,000,000 plants',
    connections: 500,
    request: () => head('GET', '/plants', { token: MALLORY }),
    unread: true,
  },
  {
    name: '50 lists of 1,000,000 plants, read',
    connections: 50,
    request: () => head('GET', '/plants', { token: MALLORY }),
  },
  {
    name: '300 limits that count 1,000,000 plants',
    connections: 300,
    request: () => head('GET', '/plants?limit=999999', { token: MALLORY }),
    unread: true,
  },
  {
    name: '31 POSTs of 1 MB, again and again',
    connections: 31,
    request: () => postBytes({ id: LARGE_ID, name: LARGE }, { token: MALLORY }),
  },
  {
    name: '1,000 pages after a cursor that is not one, 12 KB long',
    connections: 1000,
    request: () => head('GET', `/plants?after=${'A'.repeat(12_000)}`, { token: MALLORY }),
  },
  ...[300, 900].flatMap((connections) => [
    ...[1, 4, 16].map((kib) => ({
      name: `${connections} bodies of ${kib} KiB of repeated members`,
      connections,
      request: postOf(repeatedMembers(kib * 1024)),
    })),
    {
      name: `${connections} bodies of 16 KiB, one string each`,
      connections,
      request: postOf(JSON.stringify({ id: SMALL_ID, name: 'x'.repeat(16_300) })),
    },
    {
      name: `${connections} new tokens whose headers have new names`,
      connections,
      request: () => head('GET', '/plants', { token: strangeHeader() }),
    },
    ...Object.entries(LONG_HEADERS).map(([name, header]) => ({
      name: `${connections} long headers: ${name}`,
      connections,
      request: () => head('POST', '/plants', { token: bearerBeside(header), lines: [header] }),
    })),
  ]),
]

/** The same text each time: the load must not cost more than the service. */
function postOf(body: string): () => string {
  const text = postBytes(body, { token: MALLORY })
  return () => text
}

function bearerBeside(header: string): string | undefined {
  return header.startsWith('Authorization') ? undefined : MALLORY
}

/** As much of `{"id":1,"id":1,…}` as fits. */
function repeatedMembers(bytes: number): string {
  return `{${Array(Math.floor(bytes / 7) - 1).fill('"id":1').join()}}`
}

let names = 0

/** A token of 4,074 characters before its first dot, with names that no other has. */
function strangeHeader(): string {
  const name = (): string => (names++).toString(36).padStart(8, 'x')
  const members = Array.from({ length: 234 }, () => `"${name()}":0`)
  return `${Buffer.from(`{"alg":"HS256",${members.join()}}`).toString('base64url')}.e30.AAAA`
}

/** How long a probe and another owner's small list wait while one owner attacks. */
export async function measure(): Promise<void> {
  const data = await filledDirectory(rows())
  console.log(`${SECONDS} s each; median, p99 and longest wait in ms of:`)
  console.log(`/livez, another owner's GET, the same on a new connection`)
  const named = ATTACKS.filter(({ name }) => name.includes(NAMED))
  for (const attack of [undefined, ...named]) await measureUnder(data, attack)
}

function* rows(): Generator<Row> {
  for (let at = 0; at < MILLION; at++) yield ['mallory', String(at), `plant ${at}`]
  yield ['mallory', String(LARGE_ID), LARGE]
  yield ['large', '1', LARGE]
  yield ['alice', String(SMALL_ID), 'Monstera']
}

async function measureUnder(data: string, attack: Attack | undefined): Promise<void> {
  const service = await startMeasured(data)
  // A query that is never cached.
  const small = head('GET', '/plants?limit=20&x=1', { token: token('alice') })
  const livez = 'GET /livez HTTP/1.1\r\nHost: a\r\n\r\n'
  const probes = [
    { port: service.adminPort, request: livez, reconnects: true, mayBeRefused: true },
    { port: service.port, request: small, mayBeRefused: true },
    { port: service.port, request: small, reconnects: true, mayBeRefused: true },
  ]
  const [waits, sockets] = await probeDuring(probes, async () => {
    const opened = attack ? attackWith(attack, service.port) : []
    await sleep(SECONDS * 1000)
    return opened
  })
  const shown = waits.flatMap((each) =>
    [0.5, 0.99, 1].map((share) => percentile(each, share).toFixed(1).padStart(8)),
  )
  const resident = mib(service.memory().residentMiB)
  console.log(`${(attack?.name ?? 'idle').padEnd(56)} ${shown.join('')}  ${resident}`)
  for (const socket of sockets) socket.destroy()
  await service.kill('SIGKILL')
}

function attackWith(
  { connections, request, unread = false }: Attack,
  port: number,
): readonly Socket[] {
  if (unread) return flood(port, connections, (connection) => request(connection, 0))
  return Array.from({ length: connections }, (_, connection) => {
    const socket = connect(port, '127.0.0.1').on('error', () => {})
    let round = 0
    let atEnd = ''
    const ask = (): void => void socket.write(request(connection, round++))
    ask()
    return socket.on('data', (chunk) => {
      // Every answer here ends in one of these; the bytes before are not looked at.
      atEnd = (atEnd + chunk.toString('latin1', Math.max(0, chunk.length - 8))).slice(-8)
      if (/(?:[\]}]|0\r\n\r\n)$/.test(atEnd)) ask()
    })
  })
}
