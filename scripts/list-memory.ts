/**
 * One list of 100,000 plants without a limit: how far the server's memory grows over idle while it
 * is sent.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { get } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { PlantDatabase, type Row } from '../dist/store/sqljs/database.js'
import { nodeFiles } from '../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../dist/store/sqljs/snapshot.js'
import { AUDIENCE, ISSUER, SECRET, token } from '../test/support/tokens.ts'

const PLANTS = 100_000
const ROUNDS = 5
const MAIN = new URL('../dist/main.js', import.meta.url).pathname

const work = mkdtempSync(join(tmpdir(), 'plant-store-list-'))
process.on('exit', () => rmSync(work, { recursive: true, force: true }))
const data = join(work, 'data')
mkdirSync(data)
const database = await PlantDatabase.building()
database.insert(
  Array.from({ length: PLANTS }, (_, i): Row => ['alice', String(i), `Monstera ${i}`, 'indoor']),
  1,
)
await writeSnapshot(nodeFiles, data, SNAPSHOT, database.toFile({ sequence: 1, complete: true }), 1)
database.close()

const growths: number[] = []
for (let round = 0; round < ROUNDS; round++) growths.push(await measure(19_700 + round))
console.log(
  `growth ${growths.map((mib) => mib.toFixed(1)).join(', ')} MiB; most ${Math.max(...growths).toFixed(1)} MiB`,
)

async function measure(port: number): Promise<number> {
  const env = {
    PATH: process.env['PATH'],
    PLANTS_LISTEN: `127.0.0.1:${port}`,
    PLANTS_ADMIN_LISTEN: 'off',
    PLANTS_DATA: data,
    PLANTS_ISSUER: ISSUER,
    PLANTS_AUDIENCE: AUDIENCE,
    PLANTS_JWT_SECRET: SECRET,
  }
  const child = spawn(process.execPath, [MAIN, 'serve'], { stdio: 'ignore', env })
  const residentMiB = (): number =>
    Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024
  try {
    while ((await list(port, '/plants?limit=1').catch(() => '')) === '') await sleep(10)
    await sleep(1000)
    const idleMiB = residentMiB()
    let peakMiB = idleMiB
    const sampler = setInterval(() => (peakMiB = Math.max(peakMiB, residentMiB())), 2)
    const text = await list(port, '/plants')
    clearInterval(sampler)
    // The service answers with an array.
    const plants = JSON.parse(text) as readonly { readonly name: string }[]
    if (plants.length !== PLANTS || plants.some(({ name }, i) => name !== `Monstera ${i}`))
      throw new Error('the list is not complete and in order')
    console.log(
      `idle ${idleMiB.toFixed(1)} MiB, peak ${peakMiB.toFixed(1)} MiB, ${plants.length} plants`,
    )
    return peakMiB - idleMiB
  } finally {
    child.kill('SIGTERM')
    await once(child, 'exit')
  }
}

function list(port: number, path: string): Promise<string> {
  return new Promise((resolve, reject) => {
    get(
      {
        host: '127.0.0.1',
        port,
        path,
        agent: false,
        headers: { authorization: `Bearer ${token('alice')}` },
      },
      (res) => {
        const chunks: Buffer[] = []
        res.on('data', (chunk: Buffer) => chunks.push(chunk))
        res.on('end', () => resolve(Buffer.concat(chunks).toString()))
      },
    ).on('error', reject)
  })
}
