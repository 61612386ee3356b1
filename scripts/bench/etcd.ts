import { spawnSync } from 'node:child_process'
import { Cluster, NO_ETCD } from '../../test/support/etcd.ts'
import { cpuSeconds, pinned, rssMiB } from './machine.ts'
import { type Ask, type Bench, type Figures, type Row, type Run, rowsOf } from './measure.ts'
import { launch, type Server, stop } from './processes.ts'
import type { Filling } from './stores.ts'

const SMALL: Filling = { users: 100, plants: 20 }
const LIST: Filling = { users: 1, plants: 10_000 }
const MEMBERS = 3

const WORKLOADS: readonly {
  readonly what: string
  readonly filling: Filling
  readonly ask: Ask
}[] = [
  { what: 'POST 1', filling: SMALL, ask: { kind: 'post', limit: 20, ...SMALL, connections: 1 } },
  { what: 'POST 64', filling: SMALL, ask: { kind: 'post', limit: 20, ...SMALL, connections: 64 } },
  { what: 'GET20 1', filling: SMALL, ask: { kind: 'get', limit: 20, ...SMALL, connections: 1 } },
  { what: 'GET20 64', filling: SMALL, ask: { kind: 'get', limit: 20, ...SMALL, connections: 64 } },
  { what: 'all 10,000', filling: LIST, ask: { kind: 'list', limit: 0, ...LIST, connections: 1 } },
]

/**
 * The service over three members of etcd beside the embedded store. All run on one machine, so the
 * members share its disk and its cores, as they would not in earnest; what a network adds is not in
 * the figures.
 */
export async function etcd(bench: Bench): Promise<Figures> {
  const title = `over ${MEMBERS} members of etcd, all on this machine, beside the embedded store; connections behind the kind`
  if (NO_ETCD !== undefined) return { title, rows: [], values: {}, notes: [NO_ETCD] }
  const cluster = await Cluster.start(MEMBERS, {
    command: pinned ? ['taskset', '-c', '0-1', 'etcd'] : ['etcd'],
  })
  const rows: Row[] = []
  const notes: string[] = []
  try {
    for (const [i, { what, filling, ask }] of WORKLOADS.entries()) {
      const embedded = await launch('plant-store', filling)
      const clustered = await launch('plant-store', filling, {
        etcd: {
          PLANTS_ETCD_ENDPOINTS: cluster.endpoints.join(),
          PLANTS_ETCD_PREFIX: `bench/${i}/`,
        },
      })
      const servers = [
        [embedded, `${what} embedded`],
        [clustered, `${what} etcd`],
      ] as const
      const measured = new Map<Server, Run[]>(servers.map(([server]) => [server, []]))
      for (const [server] of servers) await bench.warm(server, ask)
      let membersSeconds = 0
      let requests = 0
      for (let run = 0; run < bench.settings.runs; run++) {
        for (const [server, all] of measured) {
          spawnSync('sync')
          const before = membersCpu(cluster)
          const used = cpuSeconds(server.pid)
          const result = await bench.run(server, bench.spec(server, ask, bench.settings.seconds))
            .result
          bench.made(server, result.requests + ask.connections)
          all.push({
            ...result,
            requestsPerSecond: result.requests / result.seconds,
            cpuMicrosPerRequest: ((cpuSeconds(server.pid) - used) * 1e6) / result.requests,
            othersShare: 0,
          })
          if (server === embedded) continue
          membersSeconds += membersCpu(cluster) - before
          requests += result.requests
        }
      }
      rows.push(
        ...rowsOf(
          servers.map(([server, name]) => ({
            server: name,
            rssMiB: rssMiB(server.pid),
            runs: measured.get(server) ?? [],
          })),
        ),
      )
      notes.push(
        `${what}: the members used ${Math.round((membersSeconds * 1e6) / requests)} µs of CPU for each request`,
      )
      for (const [server] of servers) await stop(server)
    }
  } finally {
    await cluster.close()
  }
  return { title, rows, values: {}, notes }
}

function membersCpu(cluster: Cluster): number {
  return cluster.members.reduce((sum, { pid }) => sum + cpuSeconds(pid ?? 0), 0)
}
