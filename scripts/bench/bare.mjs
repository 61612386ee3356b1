// The limit of Node's HTTP: bodies of the right sizes from the environment, no tokens, no storage.
import { createServer } from 'node:http'

const { PORT, PAGE20, PAGE100, CREATED } = process.env
const [page20, page100, created] = [PAGE20, PAGE100, CREATED].map((text) => Buffer.from(text))

function send(res, body) {
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length })
  res.end(body)
}

createServer((req, res) => {
  if (req.method === 'POST') req.on('data', () => {}).on('end', () => send(res, created))
  else send(res, req.url.startsWith('/plants?limit=100') ? page100 : page20)
}).listen(Number(PORT), '127.0.0.1')
