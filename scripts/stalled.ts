/** Readers that ask for a list of long plants and then read nothing: how much memory each of them holds. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { PlantDatabase, type Row } from '../dist/store/sqljs/database.js'
import { nodeFiles } from '../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../dist/store/sqljs/snapshot.js'
import { AUDIENCE, ISSUER, SECRET } from '../test/support/tokens.ts'
import { head } from '../test/support/wire.ts'

const READERS = Number(process.env['READERS'] ?? 300)
const PLANTS = 40
const PORT = 19_800
const MAIN = new URL('../dist/main.js', import.meta.url).pathname

const work = mkdtempSync(join(tmpdir(), 'plant-store-stalled-'))
process.on('exit', () => rmSync(work, { recursive: true, force: true }))
const data = join(work, 'data')
mkdirSync(data)
const database = await PlantDatabase.building()
database.insert(Array.from({ length: PLANTS }, (_, i): Row => ['alice', String(i), 'x'.repeat(1024 * 1024 - 100)]), 1)
await writeSnapshot(nodeFiles, data, SNAPSHOT, database.toFile({ sequence: 1, complete: true }), 1)
database.close()

const env = { PATH: process.env['PATH'], PLANTS_LISTEN: `127.0.0.1:${PORT}`, PLANTS_ADMIN_LISTEN: 'off', PLANTS_DATA: data, PLANTS_ISSUER: ISSUER, PLANTS_AUDIENCE: AUDIENCE, PLANTS_JWT_SECRET: SECRET }
const child = spawn(process.execPath, [MAIN, 'serve'], { stdio: ['ignore', 'pipe', 'inherit'], env })
await once(child.stdout, 'data')
const residentMiB = (): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024
const idleMiB = residentMiB()
const sockets = Array.from({ length: READERS }, () => {
  const socket = connect(PORT, '127.0.0.1')
  socket.write(head('GET', '/plants'))
  socket.once('readable', () => {})
  return socket
})
let peakMiB = 0
for (let i = 0; i < 80; i++) {
  await sleep(100)
  peakMiB = Math.max(peakMiB, residentMiB())
}
const stalledMiB = residentMiB()
console.log(`${READERS} stalled readers of ${PLANTS} plants of 1 MiB: idle ${idleMiB.toFixed(0)} MiB, peak ${peakMiB.toFixed(0)}, stalled ${stalledMiB.toFixed(0)}: ${((stalledMiB - idleMiB) / READERS).toFixed(2)} MiB each`)
for (const socket of sockets) socket.destroy()
child.kill('SIGTERM')
await once(child, 'exit')
