// The limit of Node's HTTP: constant bodies of the sizes that the real ones have, no tokens, no
// storage.
import { createServer, type ServerResponse } from 'node:http'
import { created, page } from './plants.ts'

const page20 = Buffer.from(page(0, 20))
const page100 = Buffer.from(page(0, 100))
const one = Buffer.from(created)

function send(res: ServerResponse, body: Buffer): void {
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length })
  res.end(body)
}

createServer((req, res) => {
  if (req.method === 'POST') req.on('data', () => {}).on('end', () => send(res, one))
  else send(res, req.url?.startsWith('/plants?limit=100') ? page100 : page20)
}).listen(Number(process.env['PORT']), '127.0.0.1')
