import { connect, type Socket } from 'node:net'
import { setPriority } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Row } from '../../dist/store/sqljs/database.js'
import { token } from '../../test/support/tokens.ts'
import { head, postBytes } from '../../test/support/wire.ts'
import { Prober } from './prober.ts'
import { fill, launch, type Launched, workFolder } from './service.ts'

const SECONDS = Number(process.env['SECONDS'] ?? 8)
const LOAD_NICENESS = 10
const MILLION = 1_000_000
const LARGE = 'x'.repeat(2 ** 20 - 200)
const MALLORY = token('mallory')
const LARGE_ID = 5_000_000
const SMALL_ID = 5_000_001

/**
 * What one owner with a valid token does on many connections at once, each again as soon as it is
 * answered.
 */
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
]

/** The longest wait of a probe, and of another owner's small list, while one owner attacks. */
export async function stalls(): Promise<void> {
  const data = join(workFolder(), 'data')
  const rows: Row[] = Array.from({ length: MILLION }, (_, i) => [
    'mallory',
    String(i),
    `plant ${i}`,
  ])
  rows.push(
    ['mallory', String(LARGE_ID), LARGE],
    ['large', '1', LARGE],
    ['alice', String(SMALL_ID), 'Monstera'],
  )
  await fill(data, rows)
  // Probes come first, or it would be the load's own processor that they wait for.
  setPriority(LOAD_NICENESS)
  console.log(
    `${SECONDS} s each; p99 and longest wait in ms of: /livez, another owner's GET, the same on a new connection`,
  )
  await measure(data, undefined)
  for (const attack of ATTACKS) await measure(data, attack)
}

async function measure(data: string, attack: Attack | undefined): Promise<void> {
  const service = await launch(data)
  // A query that is never cached.
  const small = head('GET', '/plants?limit=20&x=1', { token: token('alice') })
  const livez = 'GET /livez HTTP/1.1\r\nHost: a\r\n\r\n'
  const probers = [
    new Prober({ port: service.adminPort, request: livez, reconnects: true }),
    new Prober({ port: service.port, request: small, reconnects: false }),
    new Prober({ port: service.port, request: small, reconnects: true }),
  ]
  await sleep(1500)
  const sockets = attack ? attackWith(attack, service) : []
  await sleep(SECONDS * 1000)
  const waits = await Promise.all(probers.map((prober) => prober.stop()))
  const shown = waits.map(
    ({ p99Ms, longestMs }) => `${p99Ms.toFixed(1).padStart(7)} ${longestMs.toFixed(1).padStart(7)}`,
  )
  console.log(
    `${(attack?.name ?? 'idle').padEnd(56)} ${shown.join('  ')}  ${service.residentMiB().toFixed(0)} MiB`,
  )
  for (const socket of sockets) socket.destroy()
  await service.stop()
}

function attackWith(
  { connections, request, unread = false }: Attack,
  { port }: Launched,
): readonly Socket[] {
  return Array.from({ length: connections }, (_, connection) => {
    const socket = connect(port, '127.0.0.1').on('error', () => {})
    let round = 0
    let atEnd = ''
    const ask = (): void => void socket.write(request(connection, round++))
    ask()
    if (unread) socket.pause()
    // An answer's end is seen by what every answer here ends in; what is between is not looked at.
    else
      socket.on('data', (chunk) => {
        atEnd = (atEnd + chunk.toString('latin1', Math.max(0, chunk.length - 8))).slice(-8)
        if (/(?:[\]}]|0\r\n\r\n)$/.test(atEnd)) ask()
      })
    return socket
  })
}
