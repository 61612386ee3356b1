import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import { flood } from '../../test/support/flood.ts'
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { head } from '../../test/support/wire.ts'
import { filledDirectory, startMeasured } from './service.ts'

const [READ, UNREAD, PLANTS] = [450, 250, 24_000]
const END = '\r\n0\r\n\r\n'

type Outcome = 'whole' | 'refused' | 'cut off'

/** One owner reads many lists as fast as they come; another opens many and reads nothing. */
export async function measure(): Promise<void> {
  const data = await filledDirectory(
    rowsOf(2 * PLANTS, (at) => [at < PLANTS ? 'alice' : 'mallory', String(at), 'x'.repeat(90)]),
  )
  // Its buffers are small: a list that is not read stays with the service.
  const path = join(temporaryDirectorySync(), 'http.sock')
  const service = await startMeasured(data, { PLANTS_LISTEN: `unix:${path}` })
  const startedAtMs = performance.now()
  let begun = 0
  const lists = Array.from({ length: READ }, () => readList(path, () => begun++))
  while (begun < READ) await sleep(1)
  const bytes = head('GET', '/plants', { token: token('mallory') })
  const unread = flood(path, UNREAD, () => bytes)
  const outcomes = await Promise.all(lists)
  const seconds = ((performance.now() - startedAtMs) / 1000).toFixed(0)
  const count = (wanted: Outcome): number => outcomes.filter((each) => each === wanted).length
  console.log(`${READ} lists of ${PLANTS} plants, beside ${UNREAD} of another owner, unread:
${count('whole')} whole, ${count('refused')} refused, ${count('cut off')} cut off, ${seconds} s`)
  for (const socket of unread) socket.destroy()
  await service.kill('SIGKILL')
}

function readList(path: string, onBegin: () => void): Promise<Outcome> {
  return new Promise((resolve) => {
    const socket = connect(path)
    let [first, last] = ['', '']
    socket.on('data', (chunk) => {
      first ||= chunk.toString('latin1', 0, 'HTTP/1.1 200'.length)
      last = (last + chunk.subarray(-END.length).toString('latin1')).slice(-END.length)
      if (last === END || !first.endsWith('200')) socket.destroy()
    })
    socket.once('data', onBegin).on('error', () => {})
    socket.on('close', () => {
      if (last === END) resolve('whole')
      else resolve(first.endsWith('503') ? 'refused' : 'cut off')
    })
    socket.write(head('GET', '/plants', { token: token('alice') }))
  })
}
