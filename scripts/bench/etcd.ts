import { Cluster, NO_ETCD } from '../../test/support/etcd.ts'
import { cpuSeconds, pinned } from './machine.ts'
import { type Ask, type Bench, type Figures, type Row, type Run, runOf } from './measure.ts'
import { type Server, start } from './processes.ts'
import type { Filling } from './stores.ts'

const SMALL: Filling = { users: 100, plants: 20 }
const MEMBERS = 3

const WORKLOADS: readonly (readonly [what: string, filling: Filling, ask: Ask])[] = [
  ['POST 1', SMALL, { kind: 'post', limit: 20, ...SMALL, connections: 1 }],
  ['POST 64', SMALL, { kind: 'post', limit: 20, ...SMALL, connections: 64 }],
  ['GET20 1', SMALL, { kind: 'get', limit: 20, ...SMALL, connections: 1 }],
  ['GET20 64', SMALL, { kind: 'get', limit: 20, ...SMALL, connections: 64 }],
]

/**
 * The service over three members of etcd beside the embedded store. The members share the disk and
 * the cores of one machine, unlike in production, where a network would add its time.
 */
export async function etcd(bench: Bench): Promise<Figures> {
  const title =
    `over ${MEMBERS} members of etcd on this machine, beside the embedded store; ` +
    'connections after the kind'
  if (NO_ETCD !== undefined) return { title, rows: [], values: {}, notes: [NO_ETCD] }
  const cluster = await Cluster.start(MEMBERS, {
    command: pinned ? ['taskset', '-c', '0-1', 'etcd'] : ['etcd'],
  })
  const membersCpu = (): number =>
    cluster.members.reduce((sum, { pid }) => sum + cpuSeconds(pid ?? 0), 0)
  const rows: Row[] = []
  const notes: string[] = []
  try {
    for (const [i, [what, filling, ask]] of WORKLOADS.entries()) {
      const embedded = await start('plant-store', filling)
      const clustered = await start('plant-store', filling, {
        etcd: {
          PLANTS_ETCD_ENDPOINTS: cluster.endpoints.join(),
          PLANTS_ETCD_PREFIX: `bench/${i}/`,
        },
      })
      const members = { seconds: 0, requests: 0 }
      const measure = async (server: Server): Promise<Run> => {
        const [meter, before] = [bench.meter(server), membersCpu()]
        const result = await bench.run(server, ask, bench.settings.seconds)
        const run = runOf(result, meter())
        if (server === embedded) return run
        members.seconds += membersCpu() - before
        members.requests += result.requests
        // The members are not "others": they belong to what is measured.
        return { ...run, othersShare: 0 }
      }
      const servers = [
        [embedded, `${what} embedded`],
        [clustered, `${what} etcd`],
      ] as const
      rows.push(...(await bench.inTurn(servers, ask, measure)))
      const micros = Math.round((members.seconds * 1e6) / members.requests)
      notes.push(`${what}: the members used ${micros} µs of CPU for each request`)
      for (const [server] of servers) await server.stop()
    }
  } finally {
    await cluster.close()
  }
  return { title, rows, values: {}, notes }
}
