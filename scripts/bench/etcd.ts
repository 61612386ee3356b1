import { Cluster, NO_ETCD } from '../../test/support/etcd.ts'
import { prefix } from './machine.ts'
import type { Bench } from './measure.ts'
import { start } from './processes.ts'

const SMALL = { users: 100, plants: 20 }

/**
 * The service over three members of etcd beside the embedded store. The members share the disk and
 * the cores of one machine, unlike in production, where a network would add its time.
 */
export async function etcd(bench: Bench): Promise<void> {
  if (NO_ETCD !== undefined) return console.log(NO_ETCD)
  const [command = 'etcd', ...args] = [...prefix('0-1'), 'etcd']
  const cluster = await Cluster.start(3, { command: [command, ...args] })
  try {
    for (const kind of ['post', 'get'] as const) {
      for (const connections of [1, 64]) {
        const settings = {
          PLANTS_ETCD_ENDPOINTS: cluster.endpoints.join(),
          PLANTS_ETCD_PREFIX: `bench/${kind}${connections}/`,
        }
        const servers = [
          await start('plant-store', SMALL),
          await start('plant-store', SMALL, { etcd: settings }),
        ]
        const title = `${kind === 'post' ? 'POST' : 'GET of 20'}, connections: ${connections}`
        await bench.inTurn(title, servers, { kind, limit: 20, ...SMALL, connections })
        for (const server of servers) await server.stop()
      }
    }
  } finally {
    await cluster.close()
  }
}
