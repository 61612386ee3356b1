import assert from 'node:assert/strict'
import { Cluster, type Member, NO_ETCD } from '../support/etcd.ts'
import { configOf, testUnless, untilReadiness } from '../support/etcd-store.ts'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { PATIENCE_MS, until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'

const test = testUnless(NO_ETCD)
async function leaderOf(cluster: Cluster): Promise<Member> {
  let leader: Member | undefined
  await until('there is a leader', async () => (leader = await cluster.leader()) !== undefined)
  return leader ?? assert.fail()
}

test('three members: a lost leader is outlasted; a lost majority is 503 and heals', async (t) => {
  const cluster = await Cluster.start(3, {
    cheap: true,
    flags: ['--heartbeat-interval', '50', '--election-timeout', '500'],
  })
  t.after(() => cluster.close())
  const etcd = configOf(cluster.endpoints)
  // One outlasts an election on any machine. The other soon finds that there is no majority.
  const lasting = { ...etcd, timing: { attemptMs: 700, callMs: PATIENCE_MS } }
  const short = { ...etcd, timing: { attemptMs: 700, callMs: 2000 } }
  const { port, adminPort } = await startService(t, { etcd: lasting })
  const hasty = await startService(t, { etcd: short })
  let id = 0
  const createOne = async (): Promise<void> => {
    assert.equal((await post(port, { id: id++, name: 'x' })).status, 200)
    // The service's own list.
    assert.equal(((await call(port)).json() as readonly unknown[]).length, id)
  }
  await createOne()

  const killed = await leaderOf(cluster)
  await killed.end()
  await createOne()
  cluster.startMember(killed)
  await cluster.ready()

  const paused = await leaderOf(cluster)
  paused.signal('SIGSTOP')
  await createOne()
  await untilReadiness(adminPort, 200)

  const other = cluster.members.find((member) => member !== paused)
  assert.ok(other)
  await other.end()
  const replies = [post(hasty.port, { id, name: 'x' }), call(hasty.port)]
  for (const reply of await Promise.all(replies)) assert.equal(verdict(reply), 'storageUnavailable')
  await untilReadiness(hasty.adminPort, 503)

  paused.signal('SIGCONT')
  cluster.startMember(other)
  for (const each of [adminPort, hasty.adminPort]) await untilReadiness(each, 200)
  // Repeating the POST decides what the 503 left open.
  await createOne()
})
