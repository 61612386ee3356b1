/*
 * Starts three members of etcd and two instances of the service on this machine, to be tried out.
 * Prints curl lines, and how to kill a member. All of it, plants included, is removed at the end.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster, type Member, NO_ETCD } from '../test/support/etcd.ts'
import { Instance } from '../test/support/etcd-instance.ts'
import { token } from '../test/support/tokens.ts'

const MEMBERS = 3
const INSTANCES = 2
const RESTART_MS = 15_000
const TOKEN_SECONDS = 8 * 60 * 60

async function restartWhenKilled(cluster: Cluster, member: Member): Promise<void> {
  for (;;) {
    await member.ended()
    console.log(`member ${member.name} is gone; it restarts in ${RESTART_MS / 1000} s`)
    await sleep(RESTART_MS)
    cluster.startMember(member)
    console.log(`member ${member.name} is back as process ${member.pid}`)
  }
}

async function startInstance(cluster: Cluster, i: number, curl: string): Promise<void> {
  const instance = await Instance.start(cluster.endpoints, i, (text) => process.stderr.write(text))
  void instance.ended().then((code) => {
    console.error(`instance ${i + 1} has ended with ${code}`)
    process.exit(1)
  })
  const plant = `{"id": ${i + 1}, "name": "Monstera", "tag": "instance ${i + 1}"}`
  const post = `-H 'Content-Type: application/json' -d '${plant}'`
  console.log(`Instance ${i + 1}: create a plant, and list all:

${curl} ${instance.url} ${post}

${curl} ${instance.url}
`)
}

async function main(): Promise<void> {
  if (NO_ETCD !== undefined)
    throw new Error('etcd is not installed (Debian: apt-get install etcd-server)')
  // Listeners of "exit" end the processes and remove the directory. The exit status is 0 here.
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.removeAllListeners(signal).once(signal, () => process.exit(0))
  const cluster = await Cluster.start(MEMBERS)
  for (const member of cluster.members) void restartWhenKilled(cluster, member)
  console.log('Three members of etcd:')
  for (const { name, endpoint, pid } of cluster.members)
    console.log(`  ${name}  ${endpoint}  process ${pid}`)
  console.log()
  const bearer = token('alice', { exp: Math.floor(Date.now() / 1000) + TOKEN_SECONDS })
  const curl = `curl -i -H 'Authorization: Bearer ${bearer}'`
  for (let i = 0; i < INSTANCES; i++) await startInstance(cluster, i, curl)
  console.log(`What one instance stores is in the next list of the other.
Kill any one member, and both go on:

kill -9 ${cluster.members[0]?.pid}

Without two of them every answer is 503, until one is back. Ctrl-C ends and removes everything.`)
}

main().catch((error: unknown) => {
  console.error(`cluster: ${error instanceof Error ? error.message : String(error)}`)
  process.exit(1)
})
