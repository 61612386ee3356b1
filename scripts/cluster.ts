/*
 * Three members of etcd and two instances of the service on this machine, to be tried out by hand:
 * prints curl lines, and how a member is killed and started again. All of it, plants included, is
 * gone when it ends.
 */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { signDevToken } from '../dist/cli/dev-key.js'
import { Cluster, type Member, NO_ETCD } from '../test/support/etcd.ts'
import { freePort } from '../test/support/ports.ts'
import { MAIN } from '../test/support/process.ts'

const MEMBERS = 3
const INSTANCES = 2
const [ISSUER, AUDIENCE] = ['plant-store-cluster', 'plants']
const TTL_SECONDS = 8 * 60 * 60

async function startInstance(
  port: number,
  endpoints: readonly string[],
  secret: string,
): Promise<void> {
  const env = {
    PATH: process.env['PATH'] ?? '',
    PLANTS_LISTEN: `127.0.0.1:${port}`,
    PLANTS_ADMIN_LISTEN: 'off',
    PLANTS_LOG_LEVEL: 'error',
    PLANTS_ETCD_ENDPOINTS: endpoints.join(),
    PLANTS_JWT_SECRET: secret,
    PLANTS_ISSUER: ISSUER,
    PLANTS_AUDIENCE: AUDIENCE,
  }
  const child = spawn(process.execPath, [MAIN, 'serve'], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env,
  })
  process.once('exit', () => child.kill('SIGKILL'))
  child.once('exit', (code) => {
    console.error(`the instance on port ${port} has ended with ${code}`)
    process.exit(1)
  })
  while ((await fetch(`http://127.0.0.1:${port}/`).catch(() => undefined)) === undefined)
    await sleep(20)
}

/** Says when a member is gone, and brings it back a while after. */
async function keepAlive(cluster: Cluster, member: Member): Promise<void> {
  for (;;) {
    await member.ended()
    console.log(`member ${member.name} is gone; the plants go on, and it comes back in 15 s`)
    await sleep(15_000)
    cluster.startMember(member)
    console.log(`member ${member.name} is back as process ${member.pid}`)
  }
}

async function main(): Promise<void> {
  if (NO_ETCD !== undefined)
    throw new Error('etcd is not installed (Debian: apt-get install etcd-server)')
  // Members and instances are ended, and the directory is removed, by what listens to "exit". No
  // other listener is wanted.
  for (const signal of ['SIGINT', 'SIGTERM'] as const)
    process.removeAllListeners(signal).once(signal, () => process.exit(0))
  const cluster = await Cluster.start(MEMBERS)
  for (const member of cluster.members) void keepAlive(cluster, member)
  const secret = randomBytes(32).toString('hex')
  const claims = { iss: ISSUER, aud: AUDIENCE, sub: 'alice' }
  const token = signDevToken(Buffer.from(secret), claims, TTL_SECONDS)
  const bearer = `-H 'Authorization: Bearer ${token}'`
  const { endpoints } = cluster
  console.log(
    `Three members of etcd:\n${cluster.members.map(({ name, endpoint, pid }) => `  ${name}  ${endpoint}  process ${pid}`).join('\n')}\n`,
  )
  for (let i = 0; i < INSTANCES; i++) {
    const port = await freePort()
    // Each begins with another member.
    await startInstance(port, [...endpoints.slice(i), ...endpoints.slice(0, i)], secret)
    const target = `http://127.0.0.1:${port}/plants`
    console.log(`Instance ${i + 1}: create a plant, and list all:\n
curl -i ${target} ${bearer} -H 'Content-Type: application/json' -d '{"id": ${i + 1}, "name": "Monstera", "tag": "instance ${i + 1}"}'
\ncurl -i ${target} ${bearer}\n`)
  }
  console.log(`What one instance was given is in the next list of the other. Kill any one member, and both go on:\n
kill -9 ${cluster.members[0]?.pid}
\nWith two of them gone nothing is answered but 503, until one is back. Ctrl-C ends everything and removes it.`)
}

main().catch((error: unknown) => {
  console.error(`cluster: ${error instanceof Error ? error.message : String(error)}`)
  process.exit(1)
})
